"""The embedded model and its drafter as files, and the real server with them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pylucebox.core.paths import PACKAGE_DIR
from pylucebox.core.receipts import BuildReceipt
from pylucebox.formats.convert import convert
from pylucebox.formats.ledger import Role
from pylucebox.runtime.server import Server, ServerCommand, free_port, start

SOURCE = PACKAGE_DIR / "data/tiny-ds4"


def convert_pair(folder: Path, kind: str) -> tuple[Path, Path]:
    """Convert the embedded checkpoint to one type; return target and drafter."""
    target, drafter = folder / f"{kind}.gguf", folder / f"{kind}-dspark.gguf"
    convert(SOURCE, kind, target)
    convert(SOURCE, kind, drafter, Role.DRAFTER)
    return target, drafter


@contextmanager
def served(build: BuildReceipt, command: ServerCommand, runs_dir: Path) -> Iterator[Server]:
    """Serve on a free port and stop at the end."""
    with start(command, build, runs_dir, timeout_s=120) as server:
        yield server


def command_for(
    build: BuildReceipt, target: Path, drafter: Path | None, context: int, *extra: str
) -> ServerCommand:
    """One thread, a free port."""
    return ServerCommand(
        program=build.server_path,
        model=target,
        port=free_port("127.0.0.1"),
        context_tokens=context,
        drafter=drafter,
        draft_tokens=5 if drafter else None,
        extra=("-t", "1", *extra),
    )
