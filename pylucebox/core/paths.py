"""Where files live: a checkout keeps everything inside itself, an installed wheel uses the user's folders."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from pylucebox.core.errors import MissingError, RequestError

PACKAGE_DIR = Path(__file__).resolve().parent.parent
LOCK_NAME = "llama.cpp.lock.toml"
MANIFEST_NAME = "llama.cpp.manifest.txt"


@dataclass(frozen=True)
class Layout:
    """All folders of one installation. `is_checkout` decides whether overlay files are linked or copied."""

    is_checkout: bool
    vendor_dir: Path  # lock and manifest
    patches_dir: Path  # series, patches, overlay
    work_dir: Path  # archive, pristine and prepared trees
    build_root: Path  # one folder a target
    cache_dir: Path  # converted models, run logs

    @property
    def lock_path(self) -> Path:
        return self.vendor_dir / LOCK_NAME

    @property
    def manifest_path(self) -> Path:
        return self.vendor_dir / MANIFEST_NAME

    @property
    def archive_dir(self) -> Path:
        return self.work_dir / "archive"

    @property
    def pristine_dir(self) -> Path:
        return self.work_dir / "pristine"

    @property
    def prepared_dir(self) -> Path:
        return self.work_dir / "llama.cpp"

    @property
    def models_dir(self) -> Path:
        return Path(os.environ.get("LUCEBOX_MODELS") or _known(self.cache_dir) / "models")

    @property
    def bench_dir(self) -> Path:
        return _known(self.cache_dir) / "bench"

    @property
    def runs_dir(self) -> Path:
        return _known(self.cache_dir) / "runs"

    def build_dir(self, target: str) -> Path:
        return self.build_root / target


def user_cache_dir() -> Path:
    """Return LUCEBOX_HOME, or the user's cache folder for lucebox: a relative path when there is no home."""
    home = os.environ.get("LUCEBOX_HOME")
    if home:
        return Path(home).absolute()
    if os.environ.get("HOME") == "" and not os.environ.get("XDG_CACHE_HOME"):
        return Path("lucebox")  # not /.cache
    import platformdirs  # only here, so that a bare machine with LUCEBOX_HOME does without

    return Path(platformdirs.user_cache_dir("lucebox"))


def _known(cache: Path) -> Path:
    if not cache.is_absolute():
        raise MissingError("there is no home folder to keep files in", hint="set HOME or LUCEBOX_HOME")
    return cache


def find_layout() -> Layout:
    """Return the layout of this installation: the checkout around the package, else the user's folders."""
    cache = user_cache_dir()
    checkout = PACKAGE_DIR.parent
    # One of the two is enough: the error then names the file that a damaged clone lacks.
    if (checkout / "vendor" / LOCK_NAME).is_file() or (checkout / "ggml_patches" / "series").is_file():
        return Layout(
            is_checkout=True,
            vendor_dir=checkout / "vendor",
            patches_dir=checkout / "ggml_patches",
            work_dir=checkout / "vendor",
            build_root=checkout / "build",
            cache_dir=cache,
        )
    data = PACKAGE_DIR / "data"
    _known(cache)
    return Layout(
        is_checkout=False,
        vendor_dir=data / "vendor",
        patches_dir=data / "ggml_patches",
        work_dir=cache / "vendor",
        build_root=cache / "build",
        cache_dir=cache,
    )


def check_output(out: Path) -> None:
    """Raise RequestError unless a file called `out` can come to its place by a rename.

    Renaming onto a device, such as /dev/null, would replace it for the whole machine.
    """
    folder = out.absolute().parent
    if out.is_dir():
        raise RequestError(f"{out}: is a folder", hint="give the name of the file to write")
    if out.exists() and not out.is_file():
        raise RequestError(f"{out}: is no ordinary file", hint="give the name of the file to write")
    if not folder.is_dir():
        raise RequestError(f"{folder}: no such folder", hint="create it, or write elsewhere")


@contextmanager
def lock(path: Path, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold an inter-process lock at `path` (created beside what it guards) for the duration of the block.

    on_wait is called once when another process holds the lock, before waiting for it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    held = FileLock(path)
    try:
        held.acquire(timeout=0)
    except Timeout:
        if on_wait:
            on_wait()
        held.acquire()
    try:
        yield
    finally:
        held.release()
