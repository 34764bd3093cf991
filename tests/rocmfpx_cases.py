"""The golden vectors of tests/vectors/rocmfpx, and the C codecs compiled from the overlay alone."""

import ctypes
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pylucebox.core.paths import find_layout
from pylucebox.formats.rocmfpx import Codec

VECTORS = Path(__file__).resolve().parent / "vectors/rocmfpx"
OVERLAY = find_layout().patches_dir / "overlay/ggml"
CODECS = list(Codec.by_id.values())
SEARCHED = [codec for codec in CODECS if not codec.nearest_scale]

# What the overlay header takes from upstream's ggml.h.
GGML_H = "#pragma once\n#define GGML_API extern\n#define GGML_RESTRICT __restrict\n"
EXACT = ("-ffp-contract=off",)


@cache
def vectors(name: str) -> Mapping[str, Any]:
    with np.load(VECTORS / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


@dataclass(frozen=True)
class Case:
    """One input family and what a type makes of it; keys as in the vectors' README."""

    name: str
    inputs: Mapping[str, Any]
    results: Mapping[str, Any]

    def given(self, key: str) -> Any:
        return self.inputs[f"{self.name}.{key}"]

    def wanted(self, key: str) -> Any:
        return self.results[f"{self.name}.{key}"]


def cases(codec: type[Codec]) -> Iterator[Case]:
    results, inputs = vectors(codec.name), vectors("inputs")
    for name in inputs["names"]:
        yield Case(str(name), inputs, results)
    for name in results["trap_names"]:
        yield Case(str(name), results, results)


def differing_blocks(codec: type[Codec], got: Any, want: Any) -> str:
    """Say which blocks differ, for an assertion's message; empty if none does."""
    got, want = (np.ascontiguousarray(a).reshape(-1, codec.block_bytes()) for a in (got, want))
    bad = np.flatnonzero((got != want).any(axis=1))
    if not bad.size:
        return ""
    first = int(bad[0])
    shown = f"first block {first}: got {got[first].tobytes().hex()}, want {want[first].tobytes().hex()}"
    return f"{codec.name}: {bad.size} of {len(want)} blocks differ, {shown}"


def codec_sources() -> list[Path]:
    """The scalar codecs and the fast quantisers; the dot products of ggml-cpu are tested elsewhere."""
    folder = OVERLAY / "src/ggml-rocmfpx"
    return sorted(
        [
            *folder.glob("rocmfp*-ref.c"),
            *folder.glob("rocmfpx-quantize*.c"),
            *folder.glob("rocmfpx-search*.c"),
        ]
    )


def system_compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def compile_codecs(out: Path, *flags: str, extra: tuple[Path, ...] = (), compiler: str | None = None) -> Path:
    """Compile the codecs, by default with the system's C compiler. A failure shows its output."""
    compiler = compiler or system_compiler()
    assert compiler, "no C compiler on this machine"
    out.parent.mkdir(parents=True, exist_ok=True)
    (out.parent / "ggml.h").write_text(GGML_H, encoding="utf-8")
    includes = [f"-I{out.parent}", f"-I{OVERLAY / 'include'}", f"-I{OVERLAY / 'src/ggml-rocmfpx'}"]
    warnings = ["-Wall", "-Wextra", "-Werror"]
    argv = [
        compiler,
        "-std=gnu11",
        "-O3",
        *warnings,
        *flags,
        *includes,
        *map(str, [*extra, *codec_sources()]),
    ]
    done = subprocess.run([*argv, "-o", str(out), "-lm"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def _pointer(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


class CodecLibrary:
    """The C functions, called with numpy arrays. Inputs are contiguous."""

    def __init__(self, path: Path) -> None:
        self.lib = ctypes.CDLL(str(path))
        self.lib.rocmfpx_codec_of.restype = ctypes.c_void_p
        self.lib.rocmfpx_quantize_with.restype = ctypes.c_size_t
        self.lib.rocmfpx_quantize_search.restype = ctypes.c_size_t
        self.lib.rocmfpx_engine_works.restype = ctypes.c_bool
        for codec in CODECS:
            getattr(self.lib, f"quantize_{codec.stem}").restype = ctypes.c_size_t
            getattr(self.lib, f"validate_row_{codec.stem}").restype = ctypes.c_bool

    def _rows(self, codec: type[Codec], x: Any, importance: Any) -> tuple[Any, tuple[Any, ...]]:
        out = np.empty((x.shape[0], x.shape[1] // 32 * codec.block_bytes()), np.uint8)
        shape = ctypes.c_int64(x.shape[0]), ctypes.c_int64(x.shape[1])
        return out, (_pointer(x), _pointer(out), *shape, _pointer(importance))

    def quantize(self, codec: type[Codec], x: Any, importance: Any = None) -> Any:
        out, arguments = self._rows(codec, x, importance)
        assert getattr(self.lib, f"quantize_{codec.stem}")(*arguments) == out.nbytes
        return out

    def quantize_with(self, engine: int, codec: type[Codec], x: Any, importance: Any = None) -> Any:
        out, arguments = self._rows(codec, x, importance)
        description = ctypes.c_void_p(self.lib.rocmfpx_codec_of(codec.type_id))
        assert self.lib.rocmfpx_quantize_with(description, engine, *arguments) == out.nbytes
        return out

    def search(self, codec: type[Codec], x: Any, importance: Any = None) -> Any:
        out, arguments = self._rows(codec, x, importance)
        assert self.lib.rocmfpx_quantize_search(codec.type_id, *arguments) == out.nbytes
        return out

    def quantize_row_ref(self, codec: type[Codec], x: Any) -> Any:
        out = np.empty(x.size // 32 * codec.block_bytes(), np.uint8)
        getattr(self.lib, f"quantize_row_{codec.stem}_ref")(
            _pointer(x), _pointer(out), ctypes.c_int64(x.size)
        )
        return out

    def dequantize(self, codec: type[Codec], data: Any) -> Any:
        y = np.empty((*data.shape[:-1], data.shape[-1] // codec.block_bytes() * 32), np.float32)
        getattr(self.lib, f"dequantize_row_{codec.stem}")(_pointer(data), _pointer(y), ctypes.c_int64(y.size))
        return y

    def valid(self, codec: type[Codec], data: Any) -> bool:
        return bool(
            getattr(self.lib, f"validate_row_{codec.stem}")(_pointer(data), ctypes.c_size_t(data.size))
        )

    def levels(self, codec: type[Codec], block: Any) -> Any:
        out = np.empty(32, np.int8)
        description = ctypes.c_void_p(self.lib.rocmfpx_codec_of(codec.type_id))
        self.lib.rocmfpx_block_levels(description, _pointer(block), _pointer(out))
        return out

    def dot(self, codec: type[Codec], row: Any, activations: Any) -> np.float32:
        result, none = np.empty(1, np.float32), ctypes.c_size_t(0)
        n = row.size // codec.block_bytes() * 32
        function = getattr(self.lib, f"ggml_vec_dot_{codec.stem}_q8_0_generic")
        function(n, _pointer(result), none, _pointer(row), none, _pointer(activations), none, 1)
        return result[0]
