"""Show that every fix is needed: `python tools/prove_fixes.py [NAME]...` (names or numbers of patches).

For each fix the CPU build is made without it, and the test that its header names must fail; with the whole
series that test must pass. Builds in this checkout, a few objects a fix; the series is put back afterwards.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pylucebox.core.paths import Layout, find_layout
from pylucebox.source.patches import find_patch
from pylucebox.source.series import Patch, proven_test, read_series
from pylucebox.source.trees import write_if_different

ROOT = Path(__file__).resolve().parent.parent
TESTS_FAILED = (
    1  # pytest's exit code for that alone; a test that is not found or breaks in collection has another
)

Run = Callable[[Sequence[str]], int]


def run(argv: Sequence[str]) -> int:
    """Run a command in this checkout and return its exit code; tests may not skip."""
    return subprocess.run(argv, cwd=ROOT, env={**os.environ, "LUCEBOX_REQUIRE": "native"}).returncode


def build_command() -> list[str]:
    return [str(Path(sys.executable).parent / "lucebox"), "build", "--target", "cpu"]


def test_command(fixes: Sequence[Patch]) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-x", "--tb=line", *map(proven_test, fixes)]


def without(series: str, patch: Patch) -> str:
    return "".join(line for line in series.splitlines(keepends=True) if line.strip() != patch.name)


def prove(layout: Layout, fixes: Sequence[Patch], run: Run) -> list[str]:
    """Return what could not be shown, a line each; empty when every fix is needed and does its work."""
    path, problems = layout.patches_dir / "series", []
    whole = path.read_text(encoding="utf-8")
    try:
        for fix in fixes:
            write_if_different(path, without(whole, fix).encode())
            if run(build_command()) != 0:
                problems.append(f"{fix.name}: nothing can be built without it")
                continue
            status = run(test_command([fix]))
            if status != TESTS_FAILED:
                told = "passes" if status == 0 else f"cannot be run (exit {status})"
                problems.append(f"{fix.name}: without it {proven_test(fix)} {told}")
    finally:
        write_if_different(path, whole.encode())
    if run(build_command()) != 0 or run(test_command(fixes)) != 0:
        problems.append("with the whole series: the build or one of these tests fails")
    return problems


def main(words: Sequence[str]) -> int:
    layout = find_layout()
    wanted = [find_patch(layout.patches_dir, word) for word in words] or read_series(layout.patches_dir)
    fixes = [patch for patch in wanted if patch.headers.get("Class") == "fix"]
    problems = prove(layout, fixes, run)
    for problem in problems:
        print(problem)
    proven = "every test fails without its fix" if not problems else "not all proven"
    print(f"fixes: {' '.join(fix.name for fix in fixes)}: {proven}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
