"""Which files of the repository a figure depends on, and whether they still are what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pylucebox.core.errors import IntegrityError
from pylucebox.core.receipts import fingerprint, sha256_file

PATCHES = ("vendor/llama.cpp.lock.toml", "ggml_patches/series", "ggml_patches/*.patch")
OVERLAY = ("ggml_patches/overlay/ggml/**/*", "ggml_patches/overlay/lucebox/**/*")
DEVICE_CODE = "ggml_patches/overlay/ggml/src/ggml-cuda/"

# What is measured -> patterns below the repository's root.
PATTERNS = {
    "kernels": (
        *PATCHES,
        "ggml_patches/overlay/ggml/include/*",
        "ggml_patches/overlay/ggml/src/ggml-rocmfpx/*",
        "ggml_patches/overlay/ggml/src/ggml-cpu/**/*",
        "ggml_patches/overlay/tests/cpu-session.h",
        "ggml_patches/overlay/tests/bench-lucebox-kernels.cpp",
    ),
    "gpu-kernels": (
        *PATCHES,
        *OVERLAY,
        "ggml_patches/overlay/tests/bench-lucebox-gpu-kernels.cpp",
        "ggml_patches/overlay/tests/gpu-products.h",
        "ggml_patches/overlay/tests/gpu-read.*",
    ),
    "program": (*PATCHES, *OVERLAY, "ggml_patches/overlay/tests/*"),
    "speed": (*PATCHES, *OVERLAY),
    "quality": (*PATCHES, *OVERLAY, "pylucebox/formats/*.py"),
}


@dataclass(frozen=True)
class Source:
    """Repository files, as paths below its root, and one hash over their names and contents.

    Without files it stands for a build that was not made from the working tree as it was then.
    """

    files: tuple[str, ...] = ()
    sha256: str = ""

    @classmethod
    def read(cls, root: Path, what: str, target: str = "cpu") -> "Source":
        """Return the source of `what`, a key of `PATTERNS`; a CPU figure does not depend on GPU kernels.

        Raises IntegrityError when no file matches, as below a wrong root.
        """
        found = {p for pattern in PATTERNS[what] for p in root.glob(pattern) if p.is_file()}
        names = sorted(p.relative_to(root).as_posix() for p in found)
        kept = tuple(n for n in names if target != "cpu" or not n.startswith(DEVICE_CODE))
        if not kept:
            raise IntegrityError(f"{root}: holds none of the files that '{what}' measures")
        return cls(kept, hash_files(root, kept))

    def is_stale(self, root: Path) -> bool:
        """Return whether the files below `root` differ from those that were measured, or are gone."""
        try:
            return bool(self.files) and hash_files(root, self.files) != self.sha256
        except OSError:
            return True


def hash_files(root: Path, files: Sequence[str]) -> str:
    """Return one SHA-256 over the names and contents of `files`. Raises OSError when one cannot be read."""
    return fingerprint({name: sha256_file(root / name) for name in files})
