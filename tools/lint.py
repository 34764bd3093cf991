"""Run every style check and report all that fail: `python tools/lint.py [--fix]`."""

import shutil
import subprocess
import sys
from pathlib import Path

from pylucebox.core.paths import find_layout
from pylucebox.source.patches import check_patches

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
OVERLAY_SUFFIXES = {".c", ".cpp", ".h", ".cu", ".cuh"}
MAX_FILE_LINES = 400


def overlay_sources() -> list[Path]:
    """Return our own C, C++ and CUDA files; clang-format never touches anything else."""
    return sorted(p for p in (ROOT / "ggml_patches/overlay").rglob("*") if p.suffix in OVERLAY_SUFFIXES)


def long_files() -> list[str]:
    """Return the source files of ours that have outgrown the size a reader can enter."""
    ours = [*ROOT.glob("pylucebox/**/*.py"), *ROOT.glob("tools/**/*.py"), *overlay_sources()]
    counts = {p: len(p.read_text(encoding="utf-8").splitlines()) for p in ours}
    return [f"{p.relative_to(ROOT)}: {n} lines" for p, n in sorted(counts.items()) if n > MAX_FILE_LINES]


def passes(name: str, argv: list[str]) -> bool:
    """Run one tool; print its output only when it fails."""
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    print(f"{'ok' if done.returncode == 0 else 'FAIL':<5}{name}")
    if done.returncode != 0:
        print(done.stdout + done.stderr)
    return done.returncode == 0


def commands(fix: bool) -> dict[str, list[str]]:
    """Return the tools in the order they run, fast ones first."""
    tool = {n: str(BIN / n) for n in ("ruff", "mypy", "lint-imports", "codespell", "clang-format")}
    style = ["-i"] if fix else ["--dry-run", "--Werror"]
    checks = {
        "ruff": [tool["ruff"], "check", *(["--fix"] if fix else []), "."],
        "ruff format": [tool["ruff"], "format", *([] if fix else ["--check"]), "."],
        "codespell": [tool["codespell"]],
        "import rules": [tool["lint-imports"]],
        "mypy": [tool["mypy"]],
        "clang-format": [tool["clang-format"], *style, *map(str, overlay_sources())],
        "documents": [sys.executable, "tools/render_docs.py", *([] if fix else ["--check"])],
    }
    if shutil.which("git") and (ROOT / ".git").exists():
        empty_tree = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
        checks["white space"] = ["git", "diff", "--check", empty_tree, "--", "."]
    return checks


def main() -> int:
    fix = "--fix" in sys.argv[1:]
    results = [passes(name, argv) for name, argv in commands(fix).items()]
    layout = find_layout()
    pristine = layout.pristine_dir if layout.pristine_dir.is_dir() else None  # without it nothing is applied
    findings = [*check_patches(layout, pristine).problems, *long_files()]
    print(f"{'FAIL' if findings else 'ok':<5}patch series, file sizes")
    for finding in findings:
        print(finding)
    return 0 if all(results) and not findings else 1


if __name__ == "__main__":
    sys.exit(main())
