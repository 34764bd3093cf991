"""Pack a finished build for another machine: `python tools/gpu_pack.py --target sm_90 --out FILE.tar.xz`.

The pack runs from any folder: programs and libraries (stripped), receipt.json, manifest.json with the
SHA-256 of every file, and gpu_smoke.py to try it. The toolkit's own libraries are not packed; gpu_smoke.py
finds them on the other machine.
"""

import argparse
import io
import json
import shutil
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pylucebox.core import processes
from pylucebox.core.builds import find_build
from pylucebox.core.errors import IntegrityError, LuceboxError, RequestError
from pylucebox.core.paths import check_output, find_layout
from pylucebox.core.receipts import BuildReceipt, sha256_file
from pylucebox.native.dynamic import Dynamic, read_dynamic

SMOKE = Path(__file__).with_name("gpu_smoke.py")
FALLBACK = "libgomp.so.1"  # GCC's own, which small images lack; used only where the machine has none
XZ_PRESET = 1  # machine code is packed already; higher ones cost minutes for a tenth


@dataclass(frozen=True)
class Packed:
    """One program or library. name: what the others call it, its soname."""

    name: str
    path: Path


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--target", default=None, help="which build; default as for other commands")
    parser.add_argument("--out", type=Path, required=True, help="the .tar.xz to write")
    parser.add_argument("--add", type=Path, action="append", default=[], help="another file, such as a model")
    options = parser.parse_args()
    try:
        layout = find_layout()
        receipt = find_build(layout, options.target)
        count, size = pack(receipt, layout.build_dir(receipt.target), options.out, options.add)
    except LuceboxError as bad:
        print(f"error: {bad.message}" + (f"\nhint: {bad.hint}" if bad.hint else ""), file=sys.stderr)
        return bad.exit_code
    print(f"{options.out}: {count} files, {size} bytes, receipt {receipt.short_id}")
    return 0


def pack(receipt: BuildReceipt, folder: Path, out: Path, extra: list[Path]) -> tuple[int, int]:
    """Write the pack of the build in `folder`; return the number of files and the size in bytes.

    Raises RequestError for a build of this very processor, IntegrityError for a file tied to this machine.
    """
    if not receipt.portable:
        remedy = f"{receipt.build_command} --portable"
        raise RequestError(f"{folder}: made for this very processor, not for others", hint=remedy)
    check_output(out)
    absent = next((path for path in extra if not path.is_file()), None)
    if absent:
        raise RequestError(f"{absent}: no such file")
    with tempfile.TemporaryDirectory(prefix="lucebox-pack-") as name:
        stage = Path(name)
        for one in binaries(receipt.bin_dir):
            shutil.copy2(one.path, stage / one.name)
            processes.run(["strip", "--strip-unneeded", stage / one.name], error=IntegrityError)
        shutil.copy2(folder / "receipt.json", stage / "receipt.json")
        shutil.copy2(SMOKE, stage / SMOKE.name)
        gomp = find_library(FALLBACK)
        if gomp:
            (stage / "fallback").mkdir()
            shutil.copy2(gomp, stage / "fallback" / FALLBACK)
        for path in extra:
            shutil.copy2(path, stage / path.name)
        files = sorted(path for path in stage.rglob("*") if path.is_file())
        write_manifest(stage, files, receipt)
        write_archive(out, stage, [*files, stage / "manifest.json"])
        return len(files) + 1, out.stat().st_size


def binaries(bin_dir: Path) -> list[Packed]:
    """Return the programs and libraries in `bin_dir`, each once. Raises IntegrityError without $ORIGIN."""
    found = {}
    for path in sorted(bin_dir.iterdir()):
        if not path.is_file() or path.is_symlink():
            continue
        dynamic: Dynamic = read_dynamic(path)
        if dynamic.runpath.split(":")[0] != "$ORIGIN" and any(
            n in SIBLINGS for n in map(_stem, dynamic.needed)
        ):
            raise IntegrityError(f"{path}: looks for its libraries in '{dynamic.runpath}', not beside itself")
        found[dynamic.soname or path.name] = path
    return [Packed(name, path) for name, path in found.items()]


SIBLINGS = ("libggml", "libggml-base", "libllama", "libllama-common")


def _stem(name: str) -> str:
    return name.split(".so")[0]


def find_library(name: str) -> Path | None:
    """Return a library of this machine's compiler, or None."""
    lines = processes.run(["cc", f"-print-file-name={name}"], error=IntegrityError).lines
    path = Path(lines[0]) if lines else Path(name)
    return path.resolve() if path.is_absolute() and path.is_file() else None


def write_manifest(stage: Path, files: list[Path], receipt: BuildReceipt) -> None:
    """Write manifest.json: the receipt's id and the hash and size of every file."""
    rows = {
        str(path.relative_to(stage)): {"sha256": sha256_file(path), "size_bytes": path.stat().st_size}
        for path in files
    }
    content = {"schema": 1, "receipt": receipt.id, "target": receipt.target, "files": rows}
    (stage / "manifest.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def write_archive(out: Path, stage: Path, files: list[Path]) -> None:
    """Write a .tar.xz that is the same for the same files, complete or not at all."""
    partial = out.with_name(out.name + ".partial")
    try:
        with tarfile.open(partial, "w:xz", preset=XZ_PRESET) as tar:
            for path in files:
                info = tarfile.TarInfo(str(path.relative_to(stage)))
                data = path.read_bytes()
                info.size, info.mode = len(data), 0o755 if path.stat().st_mode & 0o100 else 0o644
                tar.addfile(info, io.BytesIO(data))
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
