"""Matrix products on a GPU: ROCmFPX types beside an unpatched build's, and beside reading alone."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from pylucebox.core import processes
from pylucebox.core.errors import GateError, LuceboxError, RequestError
from pylucebox.core.receipts import sha256_file
from pylucebox.measure.benchmark import Plan, Progress, interleave
from pylucebox.measure.compare import Comparison
from pylucebox.measure.programs import Record, Resident, list_records

PROGRAM = "bench-lucebox-gpu-kernels"
UNPATCHED = " (unpatched)"
BOUNDS = ("read-q8", "read", "read-plain")  # of one matrix, as the program says them after a type's name
KINDS = ("pair", "bound", "fix")

# Ours and the upstream type of its size; both have to be there.
PAIRS = (
    ("q2_0_rocmfp2", "q2_K"),
    ("q3_0_rocmfpx", "q3_K"),
    ("q4_0_rocmfp4_fast", "mxfp4"),
    ("q4_0_rocmfp4", "q4_0"),
    ("q6_0_rocmfpx", "q6_K"),
    ("q8_0_rocmfpx", "q8_0"),
)
FIXED = ("q8_0", "mxfp4")  # upstream types that a patch makes faster

# Goals. Ratios say how many times faster the judged arm is; the interval's lower end has to reach them.
DECODE_COLUMNS = 6  # up to as many columns, products are bound by reading weights
PAIR_GOAL, MANY_COLUMNS_GOAL = 1.0, 0.9
BOUND_GOAL = 1 / 1.5
LEVEL_GOALS_US = {
    ("routed-gate+up q=1", "q2_0_rocmfp2"): 20.0,
    ("routed-down q=1", "q3_0_rocmfpx"): 15.0,
}


@dataclass(frozen=True)
class Program:
    """One build's benchmark program. words: options that go before --list and --serve."""

    path: Path
    words: tuple[str, ...] = ()

    @property
    def argv(self) -> list[str | Path]:
        return [self.path, *self.words]

    @property
    def env(self) -> Mapping[str, str | None]:
        """The libraries beside the program come before those of any other build."""
        return processes.prefer_libraries(self.path.parent)

    def records(self, errors_path: Path) -> tuple[Record, ...]:
        return list_records(self.argv, errors_path, self.env)


@dataclass(frozen=True)
class Contest:
    """Arm `b`, of the patched build, against `a`; unpatched: `a` is measured by the unpatched build."""

    kind: str
    a: Record
    b: Record
    unpatched: bool

    @property
    def label_a(self) -> str:
        return self.a.arm + (UNPATCHED if self.unpatched else "")


@dataclass(frozen=True)
class Selection:
    """What to measure. only: texts of which a case or an arm has one; columns: empty for all."""

    kinds: tuple[str, ...] = KINDS
    bounds: tuple[str, ...] = BOUNDS[:1]
    only: tuple[str, ...] = ()
    columns: tuple[int, ...] = ()

    def takes(self, contest: Contest) -> bool:
        texts = (contest.b.case, contest.a.arm, contest.b.arm)
        named = not self.only or any(one in text for one in self.only for text in texts)
        return named and (not self.columns or columns_of(contest.b.case) in self.columns)


def columns_of(case: str) -> int:
    """Return the columns of a case such as "q_b q=4"."""
    return int(case.rpartition("q=")[2])


def find_contests(
    ours: Sequence[Record], theirs: Sequence[Record], selection: Selection
) -> tuple[Contest, ...]:
    """Return what the two programs can be held against each other with, case by case.

    ours: of the patched program, theirs: of the unpatched. Raises RequestError when a type of `PAIRS` is in
    no case of its program, so that a table can never be short of a row unnoticed, or when nothing is left.
    """
    patched = {(r.case, r.arm): r for r in ours}
    plain = {(r.case, r.arm): r for r in theirs}
    for names, known, build in (
        ({b for b, _ in PAIRS}, patched, "patched"),
        ({a for _, a in PAIRS}, plain, "unpatched"),
    ):
        missing = names - {arm for _, arm in known}
        if missing:
            raise RequestError(f"{PROGRAM} ({build}) does not measure {', '.join(sorted(missing))}")
    found: list[Contest] = []
    for case in dict.fromkeys(r.case for r in ours):
        decodes = columns_of(case) <= DECODE_COLUMNS
        wanted = [("pair", a, b, True) for b, a in PAIRS]
        if decodes:
            types = [*(b for b, _ in PAIRS), *FIXED]
            wanted += [("bound", f"{b}/{bound}", b, False) for b in types for bound in selection.bounds]
            wanted += [("fix", name, name, True) for name in FIXED]
        for kind, a, b, unpatched in wanted:
            left = (plain if unpatched else patched).get((case, a))
            right = patched.get((case, b))
            if kind in selection.kinds and left and right:
                found.append(Contest(kind, left, right, unpatched))
    kept = tuple(c for c in found if selection.takes(c))
    if not kept:
        raise RequestError(f"{PROGRAM}: nothing is left to measure of {len(found)} comparisons")
    return kept


def measure(
    ours: Program,
    theirs: Program,
    contests: Sequence[Contest],
    log_dir: Path,
    plan: Plan,
    progress: Progress | None = None,
    on_contest: Callable[[Comparison], None] | None = None,
) -> tuple[Comparison, ...]:
    """Measure each contest in turn. Both programs stay resident; a run is one answer of either."""
    results: list[Comparison] = []
    with ExitStack() as stack:
        ready = [
            stack.enter_context(Resident(p.argv, log_dir / f"serve-{name}.log", p.env))
            for p, name in ((ours, "patched"), (theirs, "unpatched"))
        ]
        for index, one in enumerate(contests):

            def advance(done: int, total: int, before: int = index) -> None:
                if progress:
                    progress(before * total + done, len(contests) * total)

            sides = (ready[int(one.unpatched)], ready[0])
            arms = [
                replace(side.arm(record), name=label)
                for side, record, label in zip(sides, (one.a, one.b), (one.label_a, one.b.arm), strict=True)
            ]
            (found,) = interleave(arms[0], arms[1], one.b.unit, plan, advance)
            layouts = [side.layouts[r.case, r.arm] for side, r in zip(sides, (one.a, one.b), strict=True)]
            results.append(replace(found, layout_a=layouts[0], layout_b=layouts[1]))
            if on_contest:
                on_contest(results[-1])
    return tuple(results)


def describe_gpu(errors_path: Path) -> dict[str, str]:
    """Return name, driver and clocks of the first GPU for a result; nothing without nvidia-smi."""
    fields = ("name", "driver_version", "clocks.sm", "clocks.mem", "temperature.gpu")
    argv = ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        line = processes.run(argv, errors_path=errors_path, error=RequestError).lines[0]
    except (LuceboxError, IndexError):
        return {}
    name, driver, sm, memory, celsius = (part.strip() for part in line.split(","))
    return {"device": name, "driver": driver, "clocks": f"SM {sm} and memory {memory} at {celsius} °C"}


def device_code(bin_dir: Path) -> str:
    """Return which GPU library a build has: without a receipt nothing else tells its kernels."""
    libraries = sorted({p.resolve() for p in bin_dir.glob("libggml-cuda.so*")})
    return ", ".join(f"{p.name} sha256 {sha256_file(p)[:12]}" for p in libraries) or "no CUDA library"


def check_goals(comparisons: Iterable[Comparison]) -> None:
    """Raise GateError that names every comparison that misses its goal; `fix` has none."""
    judged = list(comparisons)
    missed = [text for c in judged for text in _missed(c)]
    if missed:
        raise GateError(f"{len(missed)} goals missed in {len(judged)} comparisons: {'; '.join(missed)}")


def _missed(c: Comparison) -> list[str]:
    found = []
    goal = _ratio_goal(c)
    if c.ratio.low < goal:
        found.append(f"{c.case}: {c.arm_b} against {c.arm_a} {c.ratio.low:.3f}, goal {goal:.3g}")
    most = LEVEL_GOALS_US.get((c.case, c.arm_b))
    value = c.levels[1]
    if most and value.high > most and c.arm_a.endswith(UNPATCHED):
        found.append(f"{c.case}: {c.arm_b} takes {value.high:.1f} us, goal {most:g}")
    return found


def _ratio_goal(c: Comparison) -> float:
    if "/" in c.arm_a:
        return BOUND_GOAL
    if c.arm_a.removesuffix(UNPATCHED) == c.arm_b:
        return 0.0
    return PAIR_GOAL if columns_of(c.case) <= DECODE_COLUMNS else MANY_COLUMNS_GOAL
