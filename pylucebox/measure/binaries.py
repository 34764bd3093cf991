"""The builds that are measured: found by target name or folder, with or without a receipt."""

from dataclasses import dataclass
from pathlib import Path

from pylucebox.core.builds import find_build
from pylucebox.core.errors import MissingError, RequestError
from pylucebox.core.paths import Layout
from pylucebox.core.receipts import BuildReceipt, sha256_file

# What must agree for two builds to differ in nothing but the change that is measured.
ALIKE = ("target", "upstream_build", "compiler", "backends")


@dataclass(frozen=True)
class Binaries:
    """A folder of built programs. receipt: None where they were not built by `lucebox build`."""

    name: str
    bin_dir: Path
    receipt: BuildReceipt | None

    def program(self, name: str) -> Path:
        """Return the path of a program. Raises MissingError when this build has none of that name."""
        path = self.bin_dir / name
        if not path.is_file():
            raise MissingError(f"{path}: this build has no {name}", hint="lucebox build")
        return path

    def identity(self, program: str) -> str:
        """Return the receipt's id, or the hash of the program where there is none."""
        if self.receipt:
            return self.receipt.id
        return f"none, {program} sha256 {sha256_file(self.program(program))}"


def find_binaries(layout: Layout, where: str | None) -> Binaries:
    """Return the build at `where`: a folder, or the name of a target; None means the only build there is.

    Raises MissingError when there is none.
    """
    folder = Path(where) if where else None
    if folder is None or not folder.is_dir():
        receipt = find_build(layout, where)
        return Binaries(receipt.target, receipt.bin_dir, receipt)
    bin_dir = folder / "bin" if (folder / "bin").is_dir() else folder
    named = folder.resolve().parent if folder.resolve().name == "bin" else folder.resolve()
    return Binaries(named.name, bin_dir.resolve(), BuildReceipt.load(named))


def check_alike(a: Binaries, b: Binaries) -> None:
    """Raise RequestError when two builds differ in compiler, target, back-ends or upstream build."""
    unrecorded = [side.name for side in (a, b) if side.receipt is None]
    unlike = [
        f"{k} {getattr(a.receipt, k)} against {getattr(b.receipt, k)}"
        for k in ALIKE
        if not unrecorded and getattr(a.receipt, k) != getattr(b.receipt, k)
    ]
    if unrecorded or unlike:
        why = f"{' and '.join(unrecorded)} without a receipt" if unrecorded else ", ".join(unlike)
        raise RequestError(f"builds are not alike: {why}", hint="--allow-unlike compares them all the same")
