"""Importance matrices as llama-imatrix writes them: a GGUF file with sums of squared inputs a matrix.

A tensor NAME has NAME.in_sum2, the sums by column, and NAME.counts, how many rows of input were summed.
Stacked experts have a slice each. Values are what llama-quantize hands to the encoders: the mean, 1 for an
expert that no input reached.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pylucebox.core.errors import RequestError
from pylucebox.formats.gguf_reader import GgufHeader, read_header
from pylucebox.formats.gguf_types import MAGIC, TYPES, TensorInfo
from pylucebox.formats.number_formats import Floats

KIND = "imatrix"  # general.type of such a file
CHUNKS, CHUNK_TOKENS, DATASETS = "imatrix.chunk_count", "imatrix.chunk_size", "imatrix.datasets"
SUMS, COUNTS = ".in_sum2", ".counts"
# A matrix in the file, a stack of matrices with inputs of their own in the model.
GROUPED = ".attn_output_a.weight"
REMEDY = "make one with `lucebox imatrix MODEL -f TEXT`"


@dataclass(frozen=True)
class Importance:
    """Importance of the columns of one tensor.

    values: float32, (slices, columns). rows_per_slice: rows that share one, all experts counted.
    """

    values: Floats
    rows_per_slice: int

    def pieces(self, first: int, count: int) -> Iterator[tuple[slice, Floats]]:
        """Cut `count` rows from row `first` on where the slice changes; yields (rows from 0, importance)."""
        row = 0
        while row < count:
            index = (first + row) // self.rows_per_slice
            stop = min(count, (index + 1) * self.rows_per_slice - first)
            yield slice(row, stop), self.values[index]
            row = stop


@dataclass(frozen=True)
class ImportanceMatrix:
    """An opened file. entries: tensor name -> (sums, counts), read when asked for.

    chunks, chunk_tokens: how much text it was made of. datasets: names of the texts.
    """

    path: Path
    chunks: int
    chunk_tokens: int
    datasets: tuple[str, ...]
    entries: Mapping[str, tuple[TensorInfo, TensorInfo]]
    data_offset: int

    def find(self, name: str, shape: tuple[int, ...]) -> Importance | None:
        """Return the importance of tensor `name`, None when the file has no entry for it.

        shape: rows first. Raises RequestError when the entry belongs to a tensor of another shape.
        """
        if name not in self.entries:
            return None
        sums, counts = self.entries[name]
        slices = self.slices(name, shape)
        values = self._read(sums).reshape(_size(counts), -1)
        seen = np.rint(self._read(counts)).reshape(-1, 1)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            means = np.where(seen > 0, values / seen, np.float32(1)).astype(np.float32)
        if not (np.isfinite(means).all() and (means >= 0).all()):
            raise RequestError(f"{self.path}: {name}{SUMS} holds numbers that are no squares", hint=REMEDY)
        rows = int(np.prod(shape[:-1]))
        return Importance(means.reshape(slices, shape[-1]), rows // slices)

    def slices(self, name: str, shape: tuple[int, ...]) -> int:
        """Return how many slices the entry of `name` has. Raises RequestError unless they suit `shape`."""
        sums, counts = self.entries[name]
        values, columns = _size(sums), shape[-1]
        wanted = shape[0] if len(shape) > 2 else 1
        slices = values // columns
        groups = name.endswith(GROUPED) and len(shape) == 2 and slices and shape[0] % slices == 0
        if values != slices * columns or (slices != wanted and not groups) or values % _size(counts):
            raise RequestError(
                f"{self.path}: {name}{SUMS} has {values} values, a tensor of shape {list(shape)} needs"
                f" {wanted * columns}",
                hint="make one of the same model: lucebox imatrix MODEL -f TEXT",
            )
        return slices

    def gaps(self, names: Sequence[str]) -> tuple[str, ...]:
        """Say in sentences which of these tensors have no entry, and how many experts no input reached."""
        missing = [name for name in names if name not in self.entries]
        unseen = {n: int((self._read(self.entries[n][1]) < 0.5).sum()) for n in names if n in self.entries}
        found = []
        if missing:
            found.append(f"{self.path}: no entry for {len(missing)} matrices, such as {missing[0]}")
        if total := sum(unseen.values()):
            worst = max(unseen, key=lambda name: unseen[name])
            found.append(
                f"{self.path}: {total} experts saw no text, {unseen[worst]} of {worst}: more of it helps"
            )
        return tuple(found)

    def _read(self, tensor: TensorInfo) -> Floats:
        with self.path.open("rb") as stream:
            stream.seek(self.data_offset + tensor.offset)
            return np.fromfile(stream, "<f4", _size(tensor)).astype(np.float32, copy=False)


def read_imatrix(path: Path) -> ImportanceMatrix:
    """Open the importance matrix at `path` from its header. Raises RequestError naming file and field."""
    _refuse_legacy(path)
    header = read_header(path)
    kind = header.value("general.type")
    if kind != KIND:
        raise RequestError(f"{path}: general.type is {kind!r}, not {KIND!r}", hint=REMEDY)
    for key, kind in ((CHUNKS, int), (CHUNK_TOKENS, int), (DATASETS, tuple)):
        if key not in header.keys:
            raise RequestError(f"{path}: key {key} is missing", hint=REMEDY)
        if type(header.value(key)) is not kind:
            raise RequestError(f"{path}: key {key} is of another type", hint=REMEDY)
    return ImportanceMatrix(
        path=path,
        chunks=int(header.value(CHUNKS)),
        chunk_tokens=int(header.value(CHUNK_TOKENS)),
        datasets=tuple(str(name) for name in header.value(DATASETS)),
        entries=_entries(path, header),
        data_offset=header.data_offset,
    )


def _refuse_legacy(path: Path) -> None:
    """Its old form has no magic number, only counts and names."""
    if path.is_file():
        with path.open("rb") as stream:
            if stream.read(len(MAGIC)) != MAGIC:
                raise RequestError(
                    f"{path}: is no GGUF file; llama-imatrix wrote another format until 2025",
                    hint=f"llama-imatrix --in-file {path} -o NEW.gguf turns an old file into a new one",
                )


def _entries(path: Path, header: GgufHeader) -> dict[str, tuple[TensorInfo, TensorInfo]]:
    tensors = {tensor.name: tensor for tensor in header.tensors}
    found = {}
    for name, sums in tensors.items():
        if not name.endswith(SUMS):
            continue
        counts = tensors.get(name.removesuffix(SUMS) + COUNTS)
        if counts is None or {sums.type, counts.type} != {TYPES["F32"]}:
            raise RequestError(f"{path}: {name} has no counts beside it, or is not F32", hint=REMEDY)
        found[name.removesuffix(SUMS)] = (sums, counts)
    if not found:
        raise RequestError(f"{path}: holds no {SUMS} tensor", hint=REMEDY)
    return found


def _size(tensor: TensorInfo) -> int:
    return int(np.prod(tensor.shape))
