"""Output files: written as NAME.partial, renamed when complete, gone after any failure."""

import errno
import fcntl
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from pylucebox.core.errors import MissingError, RequestError
from pylucebox.core.paths import check_output

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Sized(Protocol):
    """A planned file."""

    @property
    def out(self) -> Path: ...
    @property
    def size_bytes(self) -> int: ...


def free_disk(out: Path) -> int:
    """Return the bytes free where `out` goes. Raises RequestError when it cannot be a file there."""
    check_output(out)
    return shutil.disk_usage(out.absolute().parent).free


def check_disk(files: Sequence[Sized]) -> None:
    """Raise MissingError unless all planned files fit on their disks together."""
    wanted: Counter[int] = Counter()
    for file in files:
        device = file.out.absolute().parent.stat().st_dev
        wanted[device] += file.size_bytes
        free = free_disk(file.out)
        if free < wanted[device]:
            raise MissingError(
                f"{file.out}: {wanted[device]} bytes of disk are needed, {free} are free",
                hint="free some disk space, or write to another disk",
            )


@contextmanager
def partial_file(out: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Open NAME.partial for writing; rename it to NAME at the end, remove it on any failure.

    Raises MissingError when it cannot be written, RequestError when another command is writing it or `out`
    is no ordinary file.
    """
    check_output(out)
    partial = out.with_name(out.name + ".partial")
    try:
        with _open_alone(partial) as stream:
            try:
                yield partial, stream
                partial.replace(out)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
    except OSError as error:
        if error.errno in DISK_ERRORS:
            raise MissingError(
                f"{partial}: the disk is full ({error.strerror})",
                hint="free some disk space, or write to another disk",
            ) from error
        raise MissingError(f"{partial}: cannot be written: {error.strerror or error}") from error


def _open_alone(partial: Path) -> BinaryIO:
    """Open and empty the file, locked: two programs writing one file would mix their data."""
    stream = os.fdopen(os.open(partial, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not partial.exists() or not os.path.samestat(partial.stat(), os.fstat(stream.fileno())):
            raise BlockingIOError  # the other one has just finished and renamed it
        stream.truncate()
    except BlockingIOError as taken:
        stream.close()
        raise RequestError(f"{partial}: another command is writing it", hint="wait for it to end") from taken
    except BaseException:
        stream.close()
        raise
    return stream
