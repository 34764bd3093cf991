"""Loads liblucebox and declares its functions: types and checks, no logic.

Nothing is loaded at import. ABI_VERSION is the one declared in the overlay's include/lucebox.h.
"""

import ctypes
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pylucebox.core.errors import IntegrityError, MissingError, RequestError

ABI_VERSION = 1

# lucebox_code of the header: what a negative result means.
CODES = {
    -1: "bad argument",
    -2: "bad state",
    -3: "incompatible",
    -4: "unsupported",
    -5: "out of memory",
    -6: "decode failed (state restored)",
    -7: "cancelled (state restored)",
    -8: "state lost",
    -9: "buffer too small",
    -10: "internal error",
}

# Function -> (result type, argument types).
DECLARATIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "lucebox_abi_version": (ctypes.c_int32, ()),
    "lucebox_build_info": (ctypes.c_int32, (ctypes.c_char_p, ctypes.c_size_t)),
}

# Of ggml itself: plain C over rows of floats, what llama-quantize calls.
GGML_DECLARATIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ggml_blck_size": (ctypes.c_int64, (ctypes.c_int,)),
    "ggml_type_size": (ctypes.c_size_t, (ctypes.c_int,)),
    "ggml_quantize_requires_imatrix": (ctypes.c_bool, (ctypes.c_int,)),
    "ggml_quantize_chunk": (
        ctypes.c_size_t,
        (
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_void_p,
        ),
    ),
    "rocmfpx_quantize_search": (
        ctypes.c_size_t,
        (
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_void_p,
        ),
    ),
    "ggml_validate_row_data": (ctypes.c_bool, (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)),
}


@dataclass(frozen=True)
class Library:
    """A loaded liblucebox of our ABI version. `functions` maps C names to declared ctypes functions."""

    path: Path
    functions: dict[str, Callable[..., int]]

    def build_info(self) -> dict[str, Any]:
        """Return what the library was made from: upstream_build, series_sha256, backends, compiler, ..."""
        info: dict[str, Any] = json.loads(self.read_text("lucebox_build_info"))
        return info

    def read_text(self, name: str, *arguments: Any) -> str:
        """Return the text of a call whose last two arguments are a buffer and its size.

        Raises RequestError naming the function and the meaning of its code.
        """
        function = self.functions[name]
        needed = checked(name, function(*arguments, None, 0))
        buffer = ctypes.create_string_buffer(needed)
        if checked(name, function(*arguments, buffer, needed)) > needed:
            raise RequestError(f"{name}: the text grew between two calls", hint="run the command again")
        return buffer.value.decode("utf-8")


def checked(name: str, result: int) -> int:
    """Return `result`, or raise RequestError when it is one of the library's codes."""
    if result < 0:
        raise RequestError(f"{name}: {CODES.get(result, f'unknown code {result}')}")
    return result


def load(path: Path) -> Library:
    """Load the library at `path` and check that it speaks our ABI version.

    Raises MissingError when there is no such file or it cannot be loaded, IntegrityError when it lacks a
    function or has another ABI version.
    """
    handle = _open(path)
    version = int(_declared(handle, path, "lucebox_abi_version")())
    if version != ABI_VERSION:
        raise IntegrityError(
            f"{path}: has ABI version {version}, this lucebox needs {ABI_VERSION}", hint="run `lucebox build`"
        )
    return Library(path, {name: _declared(handle, path, name) for name in DECLARATIONS})


def load_ggml(path: Path) -> dict[str, Callable[..., int]]:
    """Load libggml-base at `path`; return the functions of GGML_DECLARATIONS. Raises as `load` does."""
    handle = _open(path)
    return {name: _declared(handle, path, name) for name in GGML_DECLARATIONS}


def _open(path: Path) -> ctypes.CDLL:
    if not path.is_file():
        raise MissingError(f"{path}: no such library", hint="run `lucebox build`")
    try:
        return ctypes.CDLL(str(path))
    except OSError as bad:
        raise MissingError(f"{path}: cannot be loaded: {bad}", hint="run `lucebox build --fresh`") from bad


def _declared(handle: ctypes.CDLL, path: Path, name: str) -> Callable[..., int]:
    try:
        function = getattr(handle, name)
    except AttributeError as bad:
        raise IntegrityError(f"{path}: has no function {name}", hint="run `lucebox build`") from bad
    function.restype, function.argtypes = {**DECLARATIONS, **GGML_DECLARATIONS}[name]
    declared: Callable[..., int] = function
    return declared
