"""Hold a GPU against the CPU of the same machine with tiny-ds4 in each type.

    python tools/check_gpu_fidelity.py --programs FOLDER [--out docs/fidelity]

FOLDER holds the programs of a GPU build, unpacked from tools/gpu_pack.py or build/TARGET/bin. Two arms for
each type, the six ROCmFPX types and, as a yardstick, upstream's MXFP4 and Q8_0: `exact` with an F32 cache
and no flash attention, `default` as served. Each arm continues the shipped prompts greedily on both sides,
token for token; from a first difference on the CPU's text is forced on both. Perplexity is over texts longer
than a micro-batch.
Writes tiny-ds4-TARGET-gpu.json and .md; exits 7 when a ROCmFPX type falls short.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import gpu_smoke
import numpy as np
from gpu_fidelity_page import as_markdown, row
from gpu_fidelity_texts import Ids, Texts, load_texts

from pylucebox.core import processes
from pylucebox.core.errors import GateError, IntegrityError, LuceboxError, RequestError
from pylucebox.core.paths import PACKAGE_DIR
from pylucebox.formats.convert import convert
from pylucebox.formats.presets import FP2, FP3, FP4, FP4_FAST, FP6, FP8
from pylucebox.measure.machine import describe_machine
from pylucebox.measure.report import write_text

ROOT = Path(__file__).resolve().parent.parent
REFERENCES = ROOT / "tests/vectors/tiny-ds4/prompts"
CHECKPOINT = PACKAGE_DIR / "data/tiny-ds4"
OURS = (FP2, FP3, FP4_FAST, FP4, FP6, FP8)
YARDSTICKS = ("MXFP4_MOE", "Q8_0")
MODES = {"exact": "f32", "default": "f16"}  # what lucebox-logits calls them
UBATCH = 128
MAX_TOKENS = 80  # the longest shipped answer has 72
NEAR_TIE = 1e-3  # of the range of the logits
MAX_PERPLEXITY = 1e-3  # relative
ON_GPU = re.compile(r"((?:CUDA|ROCm)\d+) model buffer size")

Rows = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Split:
    """Where greedy texts part. gap: of the CPU's logits for the two tokens, relative to their range.

    behind: positions of the CPU's text after it; differ: those where the GPU likes another token best;
    largest_gap: of those.
    """

    prompt: str
    position: int
    cpu_token: int
    gpu_token: int
    gap: float
    behind: int
    differ: int
    largest_gap: float

    @property
    def is_near_tie(self) -> bool:
        return self.gap < NEAR_TIE


@dataclass(frozen=True)
class Perplexity:
    """Of one set of texts. relative: GPU over CPU, less 1; error: standard error of that, from paired tokens.

    logit_difference: the largest, relative to the range of the position's logits.
    cpu_broken, gpu_broken: tokens whose logits are no numbers on that side; the rest is over the others.
    """

    tokens: int
    cpu: float
    gpu: float
    relative: float
    error: float
    logit_difference: float
    cpu_broken: int
    gpu_broken: int


@dataclass(frozen=True)
class Arm:
    """One type and mode. identical: of `prompts` greedy texts; tokens: of them all, on the CPU."""

    type: str
    mode: str
    prompts: int
    identical: int
    tokens: int
    splits: tuple[Split, ...]
    chat: Perplexity
    prose: Perplexity
    seconds: float

    @property
    def faults(self) -> tuple[str, ...]:
        name = f"{self.type}, {self.mode}"
        found = [
            f"{name}: {s.prompt} parts at a gap of {s.gap:.1e}" for s in self.splits if not s.is_near_tie
        ]
        if abs(self.chat.relative) > MAX_PERPLEXITY:
            found.append(f"{name}: perplexity differs by {self.chat.relative:.1e}")
        for side in ("cpu", "gpu"):
            broken = getattr(self.chat, f"{side}_broken") + getattr(self.prose, f"{side}_broken")
            if broken:
                found.append(f"{name}: logits of {broken} tokens are no numbers on the {side.upper()}")
        return tuple(found)


@dataclass(frozen=True)
class Side:
    """Programs that evaluate on the CPU or on a GPU."""

    name: str
    programs: Path
    env: Mapping[str, str | None]
    words: tuple[str, ...] = ()
    needs_gpu: bool = False

    def evaluate(self, model: Path, mode: str, texts: Sequence[Ids], out: Path, *more: str) -> None:
        """Run lucebox-logits over `texts`. Raises IntegrityError when no GPU holds weights as it should."""
        ids = out.with_suffix(".ids")
        ids.write_text("".join(" ".join(map(str, text)) + "\n" for text in texts))
        argv: list[str | Path] = [
            self.programs / "lucebox-logits",
            model,
            ids,
            out,
            MODES[mode],
            *more,
            *self.words,
        ]
        output = processes.run(argv, env=self.env, log_path=out.with_suffix(".log"), error=RequestError)
        if self.needs_gpu and not any(map(ON_GPU.search, output.lines)):
            raise IntegrityError(f"{model.name}: no weights on a GPU", log_tail=output.lines[-8:])

    def continue_greedily(self, model: Path, mode: str, prompts: Sequence[Ids]) -> list[Ids]:
        out = model.with_name(f"{model.stem}-{mode}-{self.name}-greedy.txt")
        self.evaluate(model, mode, prompts, out, str(UBATCH), "--greedy", str(MAX_TOKENS))
        return [tuple(map(int, line.split())) for line in out.read_text().splitlines()]

    def logits(self, model: Path, mode: str, texts: Sequence[Ids], ubatch: int) -> list[Rows]:
        """Return a row of logits for each position of each text."""
        out = model.with_name(f"{model.stem}-{mode}-{self.name}-{ubatch}.f32")
        try:
            self.evaluate(model, mode, texts, out, str(ubatch))
            rows = np.fromfile(out, dtype="<f4").reshape(sum(map(len, texts)), -1)
        finally:
            out.unlink(missing_ok=True)
        return list(np.split(rows, np.cumsum([len(text) for text in texts])[:-1]))


@dataclass(frozen=True)
class Bench:
    """What all arms share."""

    cpu: Side
    gpu: Side
    texts: Texts

    def run(self, model: Path, kind: str, mode: str) -> Arm:
        """Compare both sides on one model and in one mode."""
        started = time.monotonic()
        prompts = [ids for _, ids in self.texts.prompts]
        cpu, gpu = (side.continue_greedily(model, mode, prompts) for side in (self.cpu, self.gpu))
        splits = tuple(self._splits(model, mode, cpu, gpu))
        whole = [*self.texts.chat, *self.texts.prose]
        mine, theirs = (side.logits(model, mode, whole, UBATCH) for side in (self.cpu, self.gpu))
        n = len(self.texts.chat)
        arm = Arm(
            kind,
            mode,
            len(prompts),
            sum(a == b for a, b in zip(cpu, gpu, strict=True)),
            sum(map(len, cpu)),
            splits,
            perplexity(self.texts.chat, mine[:n], theirs[:n]),
            perplexity(self.texts.prose, mine[n:], theirs[n:]),
            round(time.monotonic() - started, 1),
        )
        print(row(as_dict(arm)), file=sys.stderr, flush=True)
        return arm

    def _splits(self, model: Path, mode: str, cpu: Sequence[Ids], gpu: Sequence[Ids]) -> Iterator[Split]:
        """Evaluate, one token at a time as decoding does, the CPU's texts that the GPU does not repeat."""
        parted = [i for i, pair in enumerate(zip(cpu, gpu, strict=True)) if pair[0] != pair[1]]
        forced = [self.texts.prompts[i][1] + cpu[i] for i in parted]
        if not forced:
            return
        sides = zip(*(side.logits(model, mode, forced, 1) for side in (self.cpu, self.gpu)), strict=True)
        for i, (mine, theirs) in zip(parted, sides, strict=True):
            name, prompt = self.texts.prompts[i]
            span = slice(len(prompt) - 1, len(prompt) - 1 + len(cpu[i]))
            yield split_of(name, cpu[i], gpu[i], mine[span], theirs[span])


def split_of(prompt: str, cpu: Ids, gpu: Ids, mine: Rows, theirs: Rows) -> Split:
    """Compare two texts that differ. mine, theirs: rows that choose each token of `cpu`, on each side."""
    both = zip(cpu, gpu, strict=False)
    at = next((i for i, (a, b) in enumerate(both) if a != b), min(len(cpu), len(gpu)) - 1)
    behind = np.arange(at + 1, len(cpu))
    liked, wanted = theirs[behind].argmax(axis=1), mine[behind].argmax(axis=1)
    gaps = relative_gaps(mine[behind], wanted, liked)
    gap = relative_gaps(mine[at : at + 1], np.array([cpu[at]]), np.array([gpu[at]]))
    return Split(
        prompt,
        at,
        cpu[at],
        gpu[at],
        float(gap[0]),
        len(behind),
        int((liked != wanted).sum()),
        float(gaps.max(initial=0.0)),
    )


def relative_gaps(rows: Rows, first: Rows, second: Rows) -> Rows:
    """Return how far apart two tokens are in each row, relative to the row's range."""
    places = np.arange(len(rows))
    gaps = np.abs(rows[places, first] - rows[places, second])
    return np.asarray(gaps / (rows.max(axis=1) - rows.min(axis=1)))


def losses(text: Ids, rows: Rows) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the negative log likelihood of every token but the first."""
    wide = rows[:-1].astype(np.float64)
    top = wide.max(axis=1)
    total = np.log(np.exp(wide - top[:, None]).sum(axis=1)) + top
    return np.asarray(total - wide[np.arange(len(wide)), list(text[1:])])


def perplexity(texts: Sequence[Ids], mine: Sequence[Rows], theirs: Sequence[Rows]) -> Perplexity:
    """Compare the perplexity of `texts` on both sides, from a row of logits for each position."""
    cpu, gpu = (
        np.concatenate([losses(*pair) for pair in zip(texts, rows, strict=True)]) for rows in (mine, theirs)
    )
    broken = [int((~np.isfinite(side)).sum()) for side in (cpu, gpu)]
    whole = np.isfinite(cpu) & np.isfinite(gpu)
    if not whole.any():
        return Perplexity(0, 0.0, 0.0, 0.0, 0.0, 0.0, *broken)
    worst = max(
        float(np.nanmax(np.abs(a - b).max(axis=1) / (a.max(axis=1) - a.min(axis=1)), initial=0.0))
        for a, b in zip(mine, theirs, strict=True)
    )
    cpu, gpu = cpu[whole], gpu[whole]
    delta = gpu - cpu
    return Perplexity(
        len(cpu),
        float(np.exp(cpu.mean())),
        float(np.exp(gpu.mean())),
        float(np.expm1(delta.mean())),
        float(delta.std(ddof=1) / np.sqrt(len(delta))),
        worst,
        *broken,
    )


def as_dict(arm: Arm) -> dict[str, Any]:
    """Return an arm as plain values, with what was wrong and what is a near tie."""
    plain = asdict(arm)
    plain["splits"] = [{**asdict(s), "near_tie": s.is_near_tie} for s in arm.splits]
    return {**plain, "faults": list(arm.faults)}


def make_model(programs: Path, env: Mapping[str, str | None], source: Path, kind: str) -> Path:
    """Write `source` with every matrix in type `kind`."""
    model = source.with_name(f"{kind}.gguf")
    argv: list[str | Path] = [programs / "llama-quantize", "--pure", source, model, kind, "1"]
    processes.run(argv, env=env, log_path=model.with_suffix(".quantize.log"), error=RequestError)
    return model


def sides(options: argparse.Namespace, found: dict[str, Any]) -> tuple[Side, Side]:
    """Return CPU and GPU. found: receives devices, driver, problems. Raises RequestError without a GPU."""
    env = gpu_smoke.environment(options.programs, found)
    gpu_smoke.list_devices(options.programs, env, options.rehearse, found)
    if found["problems"]:
        raise RequestError("; ".join(found["problems"]))
    cpu = Side("cpu", options.programs, env, ("--device", "cpu"))
    return cpu, Side("gpu", options.against or options.programs, env, needs_gpu=not options.rehearse)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run every arm and return the result as plain values."""
    found: dict[str, Any] = {"problems": []}
    cpu, gpu = sides(options, found)
    receipt = next(
        (p for p in (options.programs, options.programs.parent) if (p / "receipt.json").exists()), None
    )
    if receipt is None:
        raise RequestError(f"{options.programs}: no receipt.json there or in the folder above")
    bench = Bench(cpu, gpu, load_texts(REFERENCES, options.prompts))
    with (
        tempfile.TemporaryDirectory(prefix="gpu-fidelity-") as folder,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        source = Path(folder) / "f32.gguf"
        convert(CHECKPOINT, "f32", source)
        kinds = options.type or [*OURS, *YARDSTICKS]
        models = list(pool.map(lambda kind: make_model(cpu.programs, cpu.env, source, kind), kinds))
        arms = list(
            pool.map(
                lambda job: bench.run(*job),
                [(model, kind, mode) for mode in MODES for model, kind in zip(models, kinds, strict=True)],
            )
        )
    return {
        "schema": 1,
        "what": "tiny-ds4 on a GPU against the CPU",
        "date": date.today().isoformat(),
        "command": " ".join(["python", "tools/check_gpu_fidelity.py", *sys.argv[1:]]),
        "machine": asdict(describe_machine()),
        "devices": found["devices"],
        "driver": found.get("driver"),
        "build": json.loads((receipt / "receipt.json").read_text(encoding="utf-8")),
        "limits": {"near_tie": NEAR_TIE, "perplexity": MAX_PERPLEXITY, "ubatch": UBATCH},
        "arms": [as_dict(arm) for arm in arms],
        "faults": [fault for arm in arms if arm.type in OURS for fault in arm.faults],
    }


def write(out_dir: Path, result: dict[str, Any]) -> None:
    """Write both files, each complete or not at all."""
    stem = f"tiny-ds4-{result['build']['target']}-gpu"
    write_text(out_dir / f"{stem}.json", json.dumps(result, indent=1) + "\n")
    write_text(out_dir / f"{stem}.md", as_markdown(result))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=Path, required=True, help="folder of the GPU build's programs")
    parser.add_argument("--against", type=Path, help="other programs for the GPU's side")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs/fidelity", help="folder for the result files"
    )
    parser.add_argument("--type", action="append", help="only this type; may be repeated")
    parser.add_argument("--prompts", type=int, default=8, help="of each kind")
    parser.add_argument("--jobs", type=int, default=describe_machine().cores, help="arms at once")
    parser.add_argument("--rehearse", action="store_true", help="accept a machine without a GPU")
    options = parser.parse_args()
    options.programs = options.programs.resolve()
    result = measure(options)
    write(options.out, result)
    print(as_markdown(result))
    if result["faults"]:
        raise GateError(f"fell short: {'; '.join(result['faults'])}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LuceboxError as error:
        print(f"error: {error.message}", *error.log_tail, sep="\n  ", file=sys.stderr)
        sys.exit(error.exit_code)
