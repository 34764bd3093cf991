"""Fuzz everything that parses, or replay the corpus: `python tools/fuzz.py [--seconds N]`.

The GGUF header in C++, then our checks of rows and our decoders, run under libFuzzer with address and
undefined-behaviour checks; the readers in Python under seeded mutations of tests/fuzz/corpus. Without options
the full number of executions is made and docs/results/hostile/fuzz.json written.
"""

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]

from build_sanitized import PROGRAMS, build  # noqa: E402
from fuzz.targets import CORPUS, TARGETS, check, mutations, seeds  # noqa: E402
from render_hostile import render  # noqa: E402

from pylucebox.core import processes  # noqa: E402
from pylucebox.core.errors import GateError, LuceboxError, MissingError  # noqa: E402
from pylucebox.core.paths import find_layout  # noqa: E402
from pylucebox.measure.machine import describe_machine  # noqa: E402
from pylucebox.measure.report import write_text  # noqa: E402
from pylucebox.measure.sources import hash_files  # noqa: E402

OUT = ROOT / "docs/results/hostile/fuzz.json"
HEADER_RUNS, PYTHON_RUNS = 10_000_000, 1_000_000
SEED = 1
NATIVE = "gguf header and types, C++"
OPTIONS = ("-max_len=1024", "-close_fd_mask=3", "-rss_limit_mb=512", "-malloc_limit_mb=256", "-timeout=10")
# What was fuzzed: the hash over these says whether the figures are of the present files.
SOURCES = (
    "vendor/llama.cpp.lock.toml",
    "ggml_patches/0002-*.patch",
    "ggml_patches/0021-*.patch",
    "ggml_patches/overlay/ggml/src/ggml-rocmfpx/*",
    "ggml_patches/overlay/tests/fuzz-lucebox-gguf.cpp",
    "pylucebox/core/errors.py",
    "pylucebox/formats/gguf_*.py",
    "pylucebox/formats/model_keys.py",
    "pylucebox/formats/safetensors_reader.py",
    "pylucebox/source/lock.py",
    "pylucebox/source/series.py",
    "tests/fuzz/*.py",
)


@dataclass(frozen=True)
class Fuzzed:
    """One target's outcome. seconds: of the clock on the wall."""

    target: str
    command: str
    executions: int
    seconds: float
    crashes: int
    found: str = ""


def fuzz_python(name: str, runs: int, seconds: float) -> Fuzzed:
    """Run a Python target `runs` times, or for `seconds` if they are not 0; the corpus comes first."""
    start, done, found, crashes = time.monotonic(), 0, "", 0
    inputs: Iterator[bytes] = mutations(name, SEED)
    for data in _inputs(name, inputs, runs, seconds, start):
        done += 1
        try:
            check(name, data)
        except Exception as crash:  # whatever a parser did not foresee
            crashes += 1
            found = found or f"{crash!r:.200} for {data[:100]!r}"
    command = f"tests/fuzz/targets.py: {name}, seed {SEED}"
    return Fuzzed(f"{name}, Python", command, done, round(time.monotonic() - start, 1), crashes, found)


def _inputs(name: str, inputs: Iterator[bytes], runs: int, seconds: float, start: float) -> Iterator[bytes]:
    yield from seeds(name)
    for count, data in enumerate(inputs, len(seeds(name))):
        if count >= runs or (seconds and time.monotonic() - start >= seconds):
            return
        yield data


def fuzz_native(programs: Path, runs: int, seconds: float) -> Fuzzed:
    """Run libFuzzer on the seeds; new inputs go to a folder that is thrown away."""
    limit = f"-max_total_time={int(seconds)}" if seconds else f"-runs={runs}"
    words = [PROGRAMS[0], *OPTIONS, f"-seed={SEED}", limit, "-dict=tests/fuzz/gguf.dict"]
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lucebox-fuzz-") as grown:
        argv = [programs / words[0], *words[1:], f"-artifact_prefix={grown}/", grown, CORPUS / "gguf"]
        crashes, found = 0, ""
        try:
            lines = processes.run(argv, cwd=ROOT, env={"GGML_NO_BACKTRACE": "1"}, error=GateError).lines
        except GateError as crash:
            crashes, lines = 1, crash.log_tail
            found = " ".join(lines)[:500]
    done = next((int(w.split()[1]) for w in reversed(lines) if w.startswith("Done ")), 0)
    return Fuzzed(NATIVE, shlex.join(words), done, round(time.monotonic() - start, 1), crashes, found)


def find_programs(optional: bool) -> Path | None:
    """Build the native target. Without clang it may be left out, unless LUCEBOX_REQUIRE names clang."""
    try:
        return build(find_layout(), PROGRAMS[:1])
    except MissingError as bad:
        if not optional or "clang" in os.environ.get("LUCEBOX_REQUIRE", "").split(","):
            raise
        print(f"not run: {NATIVE} ({bad.message}; {bad.hint})")
        return None


def sources() -> tuple[str, ...]:
    """The fuzzed files, below the repository's root."""
    return tuple(sorted(p.relative_to(ROOT).as_posix() for s in SOURCES for p in ROOT.glob(s) if p.is_file()))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=0, help="fuzz for so long in all, write no result")
    parser.add_argument(
        "--programs", type=Path, help="folder of the sanitized programs (default: build them)"
    )
    args = parser.parse_args(argv)
    share = args.seconds / (len(TARGETS) + 1)
    try:
        programs = args.programs or find_programs(bool(args.seconds))
        results = []
        for run in (
            *([lambda: fuzz_native(programs, HEADER_RUNS, share)] if programs else []),
            *(lambda n=n: fuzz_python(n, PYTHON_RUNS, share) for n in TARGETS),
        ):
            results.append(run())
            print(json.dumps(asdict(results[-1])), flush=True)
    except LuceboxError as bad:
        print(f"{bad.message}\nhint: {bad.hint}", file=sys.stderr)
        return bad.exit_code
    if not args.seconds:
        write_result(results)
    return 7 if any(r.crashes or not r.executions for r in results) else 0


def write_result(results: list[Fuzzed]) -> None:
    """Write the committed result."""
    files = sources()
    content = {
        "date": date.today().isoformat(),
        "command": "make fuzz",
        "machine": asdict(describe_machine()),
        "source": {"files": files, "sha256": hash_files(ROOT, files)},
        "targets": [asdict(r) for r in results],
    }
    write_text(OUT, json.dumps(content, indent=1) + "\n")
    render()


if __name__ == "__main__":
    sys.exit(main())
