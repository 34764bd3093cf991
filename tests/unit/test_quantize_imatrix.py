"""Importance matrices: values by tensor, expert and group; what cannot be used is refused by name."""

from pathlib import Path

import numpy as np
import pytest
from imatrix_maker import write_imatrix

from pylucebox.core.errors import RequestError
from pylucebox.formats.imatrix import read_imatrix

NAME, EXPERTS, GROUPED = "blk.0.attn_q_a.weight", "blk.0.ffn_up_exps.weight", "blk.0.attn_output_a.weight"


def entry(slices: int, columns: int, counts: list[float]) -> tuple[np.ndarray, np.ndarray]:
    sums = np.arange(slices * columns, dtype=np.float32).reshape(len(counts), -1)
    return sums, np.array(counts).reshape(-1, 1)


def test_means_by_column_expert_and_group(tmp_path: Path) -> None:
    path = write_imatrix(
        tmp_path / "i.gguf",
        {NAME: entry(1, 4, [8]), EXPERTS: entry(3, 4, [2, 0, 4]), GROUPED: entry(2, 4, [10])},
    )
    matrix = read_imatrix(path)
    assert (matrix.chunks, matrix.chunk_tokens, matrix.datasets) == (4, 512, ("some.txt",))
    plain = matrix.find(NAME, (6, 4))
    assert plain is not None and np.array_equal(plain.values, np.arange(4)[None] / np.float32(8))
    experts = matrix.find(EXPERTS, (3, 5, 4))
    assert experts is not None and experts.rows_per_slice == 5
    assert np.array_equal(experts.values, [[0, 0.5, 1, 1.5], [1, 1, 1, 1], [2, 2.25, 2.5, 2.75]])
    grouped = matrix.find(GROUPED, (6, 4))
    assert grouped is not None and grouped.rows_per_slice == 3 and grouped.values.shape == (2, 4)
    assert matrix.find("blk.0.other.weight", (6, 4)) is None


def test_pieces_cut_rows_where_the_slice_changes(tmp_path: Path) -> None:
    path = write_imatrix(tmp_path / "i.gguf", {EXPERTS: entry(3, 4, [1, 1, 1])})
    experts = read_imatrix(path).find(EXPERTS, (3, 5, 4))
    assert experts is not None
    found = [(rows.start, rows.stop, int(values[0])) for rows, values in experts.pieces(3, 9)]
    assert found == [(0, 2, 0), (2, 7, 4), (7, 9, 8)]


@pytest.mark.parametrize(
    ("name", "slices", "counts", "shape"),
    [
        (NAME, 2, [1], (6, 4)),
        (EXPERTS, 2, [1, 1], (3, 5, 4)),
        (GROUPED, 4, [1], (6, 4)),
        (NAME, 1, [1], (6, 8)),
    ],
)
def test_an_entry_of_another_shape_is_refused(
    tmp_path: Path, name: str, slices: int, counts: list[float], shape: tuple[int, ...]
) -> None:
    matrix = read_imatrix(write_imatrix(tmp_path / "i.gguf", {name: entry(slices, 4, counts)}))
    with pytest.raises(RequestError, match=f"{name}.in_sum2 has {slices * 4} values, a tensor of shape"):
        matrix.find(name, shape)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_impossible_values_are_refused(tmp_path: Path, value: float) -> None:
    sums, counts = entry(1, 4, [1])
    sums[0, 2] = value
    matrix = read_imatrix(write_imatrix(tmp_path / "i.gguf", {NAME: (sums, counts)}))
    with pytest.raises(RequestError, match=f"{NAME}.in_sum2 holds numbers that are no squares"):
        matrix.find(NAME, (6, 4))


def test_gaps_name_what_is_not_covered(tmp_path: Path) -> None:
    path = write_imatrix(tmp_path / "i.gguf", {NAME: entry(1, 4, [8]), EXPERTS: entry(3, 4, [0, 0, 4])})
    missing, unseen = read_imatrix(path).gaps([NAME, EXPERTS, "output.weight", "x.weight"])
    assert missing.endswith("no entry for 2 matrices, such as output.weight")
    assert unseen.endswith(f"2 experts saw no text, 2 of {EXPERTS}: more of it helps")
    assert read_imatrix(path).gaps([NAME]) == ()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"type": "model"}, "general.type is 'model', not 'imatrix'"),
        ({"type": None}, "general.type is None"),
        ({"datasets": None}, "key imatrix.datasets is missing"),
        ({"chunk_size": None}, "key imatrix.chunk_size is missing"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, keys: dict[str, object], message: str) -> None:
    path = write_imatrix(tmp_path / "i.gguf", {NAME: entry(1, 4, [8])}, **keys)
    with pytest.raises(RequestError) as failed:
        read_imatrix(path)
    assert message in failed.value.message and failed.value.hint


def test_the_old_format_is_named(tmp_path: Path) -> None:
    (tmp_path / "old.dat").write_bytes(b"\x02\x00\x00\x00")
    with pytest.raises(RequestError, match="is no GGUF file") as failed:
        read_imatrix(tmp_path / "old.dat")
    assert failed.value.hint is not None and "llama-imatrix --in-file" in failed.value.hint


def test_counts_and_sums_belong_together(tmp_path: Path) -> None:
    path = write_imatrix(tmp_path / "i.gguf", {NAME: entry(1, 4, [8])})
    path.write_bytes(path.read_bytes().replace(b".counts", b".county"))
    with pytest.raises(RequestError, match="has no counts beside it"):
        read_imatrix(path)
    with pytest.raises(RequestError, match=r"holds no \.in_sum2 tensor"):
        read_imatrix(write_imatrix(tmp_path / "e.gguf", {}))
