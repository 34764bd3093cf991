"""Quality of every type at equal bytes on tiny-ds4, against its F32 master: `make quality`.

Writes docs/results/quality-*.json and the table of gaps in docs/formats.md; `python tools/render_docs.py`
then draws the rest. An interrupted run goes on where it was: figures of finished models are kept in the
user's cache folder. `--render` makes only the table of gaps anew, from the committed results.
"""

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import cached_property
from math import prod
from pathlib import Path
from threading import Lock

import quality_gaps

from pylucebox.cli.freshness import is_current
from pylucebox.core.errors import IntegrityError, LuceboxError
from pylucebox.core.paths import PACKAGE_DIR, Layout, find_layout
from pylucebox.core.receipts import fingerprint, sha256_file
from pylucebox.formats.convert import convert
from pylucebox.formats.gguf_reader import read_header
from pylucebox.formats.imatrix import ImportanceMatrix
from pylucebox.formats.imatrix_maker import Collection, make_imatrix
from pylucebox.formats.presets import FLOATS, OURS, find_file_type
from pylucebox.formats.quantize import QuantizationPlan, Wish, plan_quantization, write_quantization
from pylucebox.formats.rules import read_rules
from pylucebox.measure import perplexity
from pylucebox.measure.binaries import Binaries, find_binaries
from pylucebox.measure.machine import describe_machine
from pylucebox.measure.report import Quality, Result, write_text
from pylucebox.measure.sources import Source

ROOT = Path(__file__).resolve().parent.parent
PROMPTS = ROOT / "tests/vectors/tiny-ds4/prompts"
CHECKPOINT = PACKAGE_DIR / "data/tiny-ds4"
CONTEXT_TOKENS = 512
CALIBRATION_CONTEXT_TOKENS = 256  # a shorter rest of the text is left out
CALIBRATION_EVERY = 4  # every fourth text calibrates, the others evaluate
ATTEMPTS = 4
BEGIN, USER = "<｜begin▁of▁sentence｜>", "<｜User｜>"  # some prose continuations go on with a question

# Matrices with rows of a multiple of 256, which every type can hold. The embedding has no inputs to weigh.
DENSE = r"^output\.weight|attn_(q_a|kv|output_a)\.weight|ffn_(gate|up)_shexp"
ROUNDED = {
    "type": DENSE + r"|ffn_(gate|up)_exps",
    "dense": DENSE,
}  # dense: without the experts, stored as FP4
TYPES_OURS = (
    "Q2_0_ROCMFP2",
    "Q3_0_ROCMFPX",
    "Q4_0_ROCMFP4_FAST",
    "Q4_0_ROCMFP4",
    "Q6_0_ROCMFPX",
    "Q8_0_ROCMFPX",
)
TYPES_UPSTREAM = ("Q2_K", "Q3_K", "IQ3_S", "IQ4_XS", "Q4_0", "MXFP4", "NVFP4", "Q4_K", "Q6_K", "Q8_0")
MIXES_UPSTREAM = ("Q2_K", "Q3_K_M", "IQ3_S", "IQ4_XS", "Q4_0", "MXFP4_MOE", "Q4_K_M", "Q6_K", "Q8_0")
NEED_IMATRIX = ("IQ2_XXS", "IQ2_S")  # measured with a matrix only


@dataclass(frozen=True)
class Arm:
    """One model to make.

    kind: "mix" for file type `file_type`; else a key of `ROUNDED`, those matrices in `tensor_type`.
    """

    kind: str
    file_type: str
    tensor_type: str | None = None
    imatrix: bool = False
    search: bool = False

    @property
    def name(self) -> str:
        short = re.sub(r"Q(\d)_0_ROCMFP[\dX]", r"FP\1", self.tensor_type or self.file_type)
        return short + (quality_gaps.SEARCH if self.search else "")

    @property
    def slug(self) -> str:
        parts = [self.kind, self.name, "imatrix" if self.imatrix else "plain"]
        return "-".join(parts).replace(" ", "-").lower()


@dataclass(frozen=True)
class Table:
    """One result file."""

    stem: str
    what: str
    arms: tuple[Arm, ...]


def tables() -> tuple[Table, ...]:
    """Return every result file and the models in it."""
    weighed = {False: "without an importance matrix", True: "with an importance matrix"}
    found = []
    for imatrix, suffix in ((False, ""), (True, "-imatrix")):
        extra = NEED_IMATRIX if imatrix else ()
        types = _types("type", imatrix, extra)
        found.append(Table(f"quality-types{suffix}", f"One type at a time, {weighed[imatrix]}", types))
    dense = _types("dense", True, NEED_IMATRIX)
    found.append(Table("quality-dense-imatrix", "One type at a time, routed experts F32", dense))
    for imatrix, suffix in ((True, "-imatrix"), (False, "")):
        extra = NEED_IMATRIX if imatrix else ()
        mixes = [Arm("mix", t, None, imatrix) for t in (*(t.name for t in OURS), *extra, *MIXES_UPSTREAM)]
        mixes += [Arm("mix", t.name, None, imatrix, search=True) for t in OURS]
        found.append(Table(f"quality-mixes{suffix}", f"Whole files, {weighed[imatrix]}", tuple(mixes)))
    return tuple(found)


def _types(kind: str, imatrix: bool, extra: tuple[str, ...]) -> tuple[Arm, ...]:
    names = (*TYPES_OURS, *extra, *TYPES_UPSTREAM)
    found = [Arm(kind, "Q8_0", name, imatrix) for name in names]
    return (*found, *(Arm(kind, "Q8_0", name, imatrix, search=True) for name in TYPES_OURS))


@dataclass(frozen=True)
class Texts:
    """Disjoint parts of the held-out prompts. prose: share of the characters that is prose."""

    evaluation: str
    calibration: str
    prose: float


def read_texts(folder: Path) -> Texts:
    """Return the texts without chat markers, which llama-perplexity would read as plain characters."""
    parts: dict[bool, list[str]] = {False: [], True: []}
    prose_characters = 0
    for kind in ("gsm", "math", "prose"):
        for index, line in enumerate((folder / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()):
            row = json.loads(line)
            if kind == "prose":
                text = (
                    row["prompt"].removeprefix(BEGIN).strip()
                    + " "
                    + row["ref_output"].partition(USER)[0].strip(" ")
                )
            else:
                text = f"{row['question']}\n{row['worked_answer']}"
            calibrates = index % CALIBRATION_EVERY == CALIBRATION_EVERY - 1
            parts[calibrates].append(text)
            prose_characters += len(text) if kind == "prose" and not calibrates else 0
    evaluation, calibration = ("\n\n".join(parts[key]) for key in (False, True))
    return Texts(evaluation, calibration, prose_characters / len(evaluation))


@dataclass(frozen=True)
class Measured:
    """A model's figures. composition: type -> weights."""

    quality: Quality
    composition: dict[str, int]


class Bench:
    """What all models share: master, texts, importance matrix, log probabilities. Everything is in `work`."""

    def __init__(self, layout: Layout, build: Binaries, work: Path) -> None:
        self.layout, self.build, self.work = layout, build, work
        work.mkdir(parents=True, exist_ok=True)
        self.texts = read_texts(PROMPTS)
        self.evaluation, self.calibration = work / "evaluation.txt", work / "calibration.txt"
        write_text(self.evaluation, self.texts.evaluation)
        write_text(self.calibration, self.texts.calibration)
        self.setup = perplexity.Setup(
            build.program(perplexity.PROGRAM), CONTEXT_TOKENS, chunks=None, threads=1, log_dir=work
        )
        self.lock = Lock()
        self.by_data: dict[str, Quality] = {}

    @cached_property
    def master(self) -> Path:
        return convert(CHECKPOINT, "f32", self.work / "master.gguf").out

    @cached_property
    def imatrix(self) -> ImportanceMatrix:
        wanted = Collection(
            self.master,
            self.calibration,
            self.work / "imatrix.gguf",
            CALIBRATION_CONTEXT_TOKENS,
            with_output=True,
        )
        return make_imatrix(self.build.program("llama-imatrix"), wanted)

    @cached_property
    def base(self) -> perplexity.Base:
        return perplexity.make_base(self.setup, self.master, self.evaluation, self.work / "base")

    @cached_property
    def identity(self) -> str:
        """Changes when kept figures are no longer those of this build and these texts."""
        texts = {path.name: sha256_file(path) for path in (self.evaluation, self.calibration)}
        return fingerprint({"build": self.build.identity(perplexity.PROGRAM), **texts})

    def prepare(self) -> None:
        """Make what all models need, before several threads ask for it."""
        print(
            f"master     {self.master}, imatrix {self.imatrix.path}, base {self.base.path}", file=sys.stderr
        )

    def plan(self, arm: Arm) -> QuantizationPlan:
        """Plan an arm's file."""
        rules = None
        if arm.tensor_type:
            path = self.work / f"{arm.slug}.rules"
            write_text(path, f"{ROUNDED[arm.kind]} = {arm.tensor_type.lower()}\n. = f32\n")
            rules = read_rules(path)
        return plan_quantization(
            self.build.program("llama-quantize"),
            Wish(
                self.master,
                self.work / f"{arm.slug}.gguf",
                find_file_type(arm.file_type),
                rules,
                self.imatrix if arm.imatrix else None,
                search=arm.search,
            ),
        )

    def measure(self, arm: Arm) -> Measured:
        """Make an arm's file and hold it against the master, or return what an earlier run found."""
        kept = self.work / f"{arm.slug}.json"
        if kept.is_file() and (found := json.loads(kept.read_text(encoding="utf-8")))["key"] == self.identity:
            return Measured(Quality(**found["quality"]), found["composition"])
        plan = self.plan(arm)
        write_quantization(plan)
        try:
            quality = self._evaluate(plan.out, arm.slug)
        finally:
            plan.out.unlink(missing_ok=True)
        composition = weights_by_type(plan)
        type_name = arm.tensor_type or describe(composition)
        bits = bits_of_rounded(plan) if arm.tensor_type else plan.bits
        quality = replace(quality, name=arm.name, type_name=type_name, bits_per_weight=round(bits, 4))
        write_text(
            kept,
            json.dumps({"key": self.identity, "quality": asdict(quality), "composition": composition}) + "\n",
        )
        with self.lock:
            print(f"done       {arm.slug}: {bits:.2f} bits, KLD {quality.kld_mean:.5f}", file=sys.stderr)
        return Measured(quality, composition)

    def _evaluate(self, model: Path, slug: str) -> Quality:
        """Evaluate a model, unless one with the same weights has been."""
        weights = hash_weights(model)
        with self.lock:
            known = self.by_data.get(weights)
        quality = known or self._measure_whole(model, slug)
        with self.lock:
            self.by_data[weights] = quality
        return quality

    def _measure_whole(self, model: Path, slug: str) -> Quality:
        """Evaluate a model, again where the program ended before its last lines were written.

        Upstream's logger is a thread that nobody waits for at the end: on a busy machine lines get lost.
        """
        for _ in range(ATTEMPTS - 1):
            try:
                return perplexity.measure_model(self.setup, self.base, model, slug)
            except IntegrityError as lost:
                print(f"again      {slug}: {lost}", file=sys.stderr)
        return perplexity.measure_model(self.setup, self.base, model, slug)

    def result(self, table: Table, measured: Sequence[Measured]) -> Result:
        """Return a table's result file."""
        receipt = self.build.receipt
        current = receipt is not None and is_current(self.layout, receipt)
        rounded = "rounded matrices" if table.arms[0].tensor_type else "whole model"
        return Result(
            what=f"{table.what}: tiny-ds4 against its F32 master",
            date=date.today().isoformat(),
            command="python tools/measure_quality.py",
            machine=describe_machine(),
            receipts={self.build.name: self.build.identity(perplexity.PROGRAM)},
            source=Source.read(ROOT, "quality", receipt.target) if receipt and current else Source(),
            settings={
                "context": f"{CONTEXT_TOKENS} tokens",
                "chunks": str(self.base.chunks),
                "text": f"held-out questions and answers, {100 * self.texts.prose:.0f} % of it prose",
                "master": f"perplexity {self.base.perplexity:.4f}",
                "bits a weight": f"of the {rounded}",
            },
            qualities=merge_equal(measured),
        )


def hash_weights(model: Path) -> str:
    """Return the SHA-256 of all that follows a file's header, whose keys differ between like models."""
    with model.open("rb") as stream:
        stream.seek(read_header(model).data_offset)
        return hashlib.file_digest(stream, "sha256").hexdigest()


def bits_of_rounded(plan: QuantizationPlan) -> float:
    """Return bits a weight of the tensors that the plan rounds."""
    rounded = [t for t in plan.tensors if t.old is not t.new]
    return sum(t.size_bytes for t in rounded) * 8 / sum(prod(t.shape) for t in rounded)


def weights_by_type(plan: QuantizationPlan) -> dict[str, int]:
    """Return how many weights of matrices have which type, the most frequent type first."""
    found: dict[str, int] = {}
    for tensor in plan.tensors:
        if len(tensor.shape) > 1 and tensor.new.name != "I32":
            found[tensor.new.name] = found.get(tensor.new.name, 0) + prod(tensor.shape)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def describe(composition: dict[str, int]) -> str:
    """Return the types a mix is made of, without the floats, with their shares of the matrices' weights."""
    total = sum(composition.values())
    return ", ".join(
        f"{name} {100 * weights / total:.0f} %" for name, weights in composition.items() if name not in FLOATS
    )


def merge_equal(measured: Iterable[Measured]) -> tuple[Quality, ...]:
    """Return the figures; names that come out as the same weights share a line, joined by " = "."""
    found: dict[tuple[object, ...], Quality] = {}
    for one in measured:
        q = one.quality
        key = (q.kld_mean, q.kld_p99, q.perplexity, q.bits_per_weight, tuple(one.composition.items()))
        if key in found and found[key].type_name == q.type_name:
            found[key] = replace(found[key], name=f"{found[key].name}{quality_gaps.SAME}{q.name}")
        else:
            found[key] = q
    return tuple(sorted(found.values(), key=lambda q: (q.bits_per_weight or 0, q.name)))


def measure_tables(bench: Bench, chosen: Sequence[Table], out: Path, jobs: int) -> None:
    """Measure every model of the tables, `jobs` at once, and write the result files."""
    bench.prepare()
    for table in chosen:
        with ThreadPoolExecutor(jobs) as pool:
            measured = list(pool.map(bench.measure, table.arms))
        path = out / f"{table.stem}.json"
        bench.result(table, measured).save(path)
        print(path)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="STEM", help="result files whose name contains this")
    parser.add_argument("--build", metavar="NAME", help="target name or folder; default: the only build")
    parser.add_argument("--jobs", type=int, default=2, help="models at once, one thread each (default: 2)")
    parser.add_argument("--render", action="store_true", help="only write the table of gaps")
    options = parser.parse_args()
    results = ROOT / "docs/results"
    try:
        if not options.render:
            layout = find_layout()
            bench = Bench(layout, find_binaries(layout, options.build), layout.bench_dir / "quality")
            chosen = [t for t in tables() if options.only in t.stem]
            measure_tables(bench, chosen, results, options.jobs)
        quality_gaps.write_section(ROOT / "docs/formats.md", results)
    except LuceboxError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
