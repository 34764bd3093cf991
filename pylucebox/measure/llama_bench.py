"""Decode and prompt speed of a model through llama-bench, one process a sample."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pylucebox.core import processes
from pylucebox.core.errors import IntegrityError, RequestError
from pylucebox.measure.benchmark import Arm, Plan, Progress, interleave
from pylucebox.measure.compare import Comparison
from pylucebox.measure.report import Level

PROGRAM = "llama-bench"
UNIT = "tok/s"

# Facts that two sides of a comparison must share, or it is not the model or the build that differs.
SHARED = (
    "backends", "cpu_info", "gpu_info", "n_batch", "n_ubatch", "type_k", "type_v", "flash_attn",
    "n_gpu_layers", "n_cpu_moe", "split_mode", "load_mode", "repack",
)  # fmt: skip
OWN = ("model_type", "model_size", "model_n_params", "build_number")


@dataclass(frozen=True)
class Workload:
    """What one process measures, for each depth and thread count. A token count of 0 leaves a test out."""

    prompt_tokens: int = 512
    decode_tokens: int = 128
    depths: tuple[int, ...] = (0,)
    threads: tuple[int, ...] = (1,)
    repetitions: int = 1

    def arguments(self) -> list[str]:
        """Return llama-bench's options."""
        return [
            "-p", str(self.prompt_tokens), "-n", str(self.decode_tokens), "-r", str(self.repetitions),
            "-d", ",".join(map(str, self.depths)), "-t", ",".join(map(str, self.threads)), "-o", "jsonl",
        ]  # fmt: skip

    @property
    def tests(self) -> int:
        """Lines that llama-bench prints."""
        kinds = (self.prompt_tokens > 0) + (self.decode_tokens > 0)
        return kinds * len(self.depths) * len(self.threads)


@dataclass(frozen=True)
class LlamaBench:
    """One side: a build's llama-bench with a model. facts: what its last run said of itself.

    extra: options handed on untouched.
    """

    name: str
    program: Path
    model: Path
    workload: Workload
    log_dir: Path
    extra: tuple[str, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)

    def command(self) -> list[str | Path]:
        """Return the command line of one run."""
        return [self.program, "-m", self.model, *self.workload.arguments(), *self.extra]

    def run(self) -> dict[str, float]:
        """Measure once: tokens a second for each case. Raises RequestError when llama-bench fails."""
        log = self.log_dir / f"{PROGRAM}-{self.name}.log".replace("/", "_")
        output = processes.run(self.command(), errors_path=log, error=RequestError, what=PROGRAM)
        lines = [line for line in output.lines if line.strip()]
        tests = [parse_test(line, self.workload.repetitions) for line in lines]
        values = {case: speed for case, speed, _ in tests}
        if len(values) != self.workload.tests or len(tests) != len(values):
            raise IntegrityError(f"{PROGRAM}: {len(tests)} results, expected {self.workload.tests} different")
        self.facts.update({k: str(tests[0][2][k]) for k in (*SHARED, *OWN)})
        return values

    def arm(self) -> Arm:
        """Return this side as an arm."""
        return Arm(self.name, self.run)


def parse_test(line: str, repetitions: int) -> tuple[str, float, Mapping[str, Any]]:
    """Read one line of `-o jsonl`: case, tokens a second over all repetitions together, and every field."""
    try:
        data = json.loads(line)
        prompt, decode, depth, threads = (int(data[k]) for k in ("n_prompt", "n_gen", "n_depth", "n_threads"))
        times_ns = [int(t) for t in data["samples_ns"]]
        missing = [k for k in (*SHARED, *OWN) if k not in data]
    except (ValueError, KeyError, TypeError) as bad:
        raise IntegrityError(f"{PROGRAM}: missing or malformed ({bad!r}) in {line!r}") from bad
    if missing or len(times_ns) != repetitions or min(times_ns) <= 0:
        raise IntegrityError(f"{PROGRAM}: {missing or times_ns} is not what was asked for, in {line!r}")
    kind = f"prompt {prompt}" if prompt else f"decode {decode}"
    where = f" at depth {depth}" if depth else ""
    noun = "thread" if threads == 1 else "threads"
    speed = 1e9 * (prompt + decode) * len(times_ns) / sum(times_ns)
    return f"{kind}{where}, {threads} {noun}", speed, data


def measure_speed(
    a: LlamaBench, b: LlamaBench, plan: Plan, progress: Progress | None = None, allow_unlike: bool = False
) -> tuple[Comparison, ...]:
    """Hold B against A. Raises RequestError when they ran with other settings, unless `allow_unlike`."""
    found = interleave(a.arm(), b.arm(), UNIT, plan, progress)
    unlike = unlike_facts(a.facts, b.facts)
    if unlike and not allow_unlike:
        raise RequestError(
            f"{a.name} and {b.name} ran with different settings: {', '.join(unlike)}",
            hint="--allow-unlike compares them all the same",
        )
    return found


def measure_levels(side: LlamaBench, plan: Plan, progress: Progress | None = None) -> tuple[Level, ...]:
    """Measure one side on its own: half of its samples stand against the other half as the A/A floor."""
    plan = Plan(plan.rounds, 0, plan.warmups)
    return tuple(Level.of(c) for c in interleave(side.arm(), side.arm(), UNIT, plan, progress))


def unlike_facts(a: Mapping[str, str], b: Mapping[str, str]) -> list[str]:
    """Return "name x against y" for each shared fact that differs."""
    return [f"{k} {a[k]} against {b[k]}" for k in SHARED if a[k] != b[k]]


def shared_settings(sides: Sequence[LlamaBench]) -> dict[str, str]:
    """Return the facts worth keeping in a result: those that the sides share, and each side's model."""
    dull = ("", "0", "-1", "auto", "none")
    settings = {k: v for k, v in sides[0].facts.items() if k in SHARED and v not in dull}
    for side in sides:
        facts = side.facts
        weights = f"{facts['model_n_params']} weights in {facts['model_size']} bytes"
        settings[f"model {side.name}"] = f"{side.model.name} ({facts['model_type']}, {weights})"
    if sides[0].extra:
        settings["options"] = shlex.join(sides[0].extra)
    return settings
