"""Quality of a model against its F32 master through llama-perplexity: perplexity, KL divergence, top-1."""

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pylucebox.core import processes
from pylucebox.core.errors import IntegrityError, RequestError
from pylucebox.core.paths import check_output
from pylucebox.measure.benchmark import Progress
from pylucebox.measure.report import Quality

PROGRAM = "llama-perplexity"
MAGIC = b"_logits_"
MIN_TOKENS = 100  # the program prints no statistics over fewer
MAX_BASE_LOSS = (
    0.005  # nats a token that the 16-bit base may be off; above, the figures are not to be trusted
)

NUMBER = r"(-?[\d.]+|-?nan|-?inf)"
# Label of a line of statistics -> whether it carries an uncertainty.
STATISTICS = {
    "Mean PPL(Q)": True,
    "Mean PPL(base)": True,
    "Mean KLD": True,
    "99.0% KLD": False,
    "Same top p": True,
}
# It goes on after these complaints and prints figures that mean nothing.
FATAL = ("inconsistent vocabulary", "has been computed with", "failed reading")


@dataclass(frozen=True)
class Setup:
    """How a text is evaluated: in chunks of `context_tokens`, one a batch; the second half of each counts.

    chunks: None for all. extra: options handed on untouched.
    """

    program: Path
    context_tokens: int
    chunks: int | None
    threads: int
    log_dir: Path
    extra: tuple[str, ...] = ()

    def command(self, model: Path, words: Sequence[str | Path]) -> list[str | Path]:
        """Return a command line of the program."""
        size = str(self.context_tokens)
        batch = ["-c", size, "-b", size, "-t", str(self.threads), "-lv", "4"]  # 4: types and sizes in the log
        return [self.program, "-m", model, *batch, *words, *self.extra]


@dataclass(frozen=True)
class Base:
    """Log probabilities of the master for every counted position, kept in 16 bits each.

    Each lies in one of 65535 steps below the likeliest token's, and what is less likely by more than e^-16 is
    kept as e^-16. So the program's "PPL(base)" can be far off and is not used; such tokens are left out of
    the divergence. perplexity: the master's own, computed without that loss.
    """

    path: Path
    context_tokens: int
    vocabulary: int
    chunks: int
    perplexity: float = 0.0

    @property
    def tokens(self) -> int:
        """Positions that count: the second half of every chunk, less its last token."""
        return self.chunks * counted(self.context_tokens)

    @classmethod
    def read(cls, path: Path) -> "Base":
        """Read the header. Raises IntegrityError when the file is no base or not as long as it says."""
        try:
            with path.open("rb") as stream:
                magic, context, vocabulary, chunks = struct.unpack("<8siii", stream.read(20))
        except (OSError, struct.error) as bad:
            raise IntegrityError(f"{path}: no log probabilities in it ({bad})") from bad
        if magic != MAGIC:
            raise IntegrityError(f"{path}: does not start like a file of log probabilities")
        size = path.stat().st_size
        row = 2 * ((vocabulary + 1) // 2) + 4
        expected = 20 + 4 * chunks * context + 2 * chunks * counted(context) * row
        if size != expected:
            raise IntegrityError(f"{path}: {size} bytes, {chunks} chunks of {context} tokens need {expected}")
        return cls(path, context, vocabulary, chunks)


def counted(context_tokens: int) -> int:
    """Return how many positions of a chunk count."""
    return context_tokens - 1 - context_tokens // 2


def evaluate(
    setup: Setup,
    reference: Path,
    text: Path,
    models: Mapping[str, Path],
    base_path: Path,
    progress: Progress | None = None,
) -> tuple[Base, tuple[Quality, ...]]:
    """Hold each model, by name, against the master on `text`; its log probabilities stay in `base_path`.

    progress: called with (models evaluated, models in all), the master counted. Raises as `make_base` and
    `measure_model` do; then no base is left behind.
    """
    check_output(base_path)
    partial = base_path.with_name(base_path.name + ".partial")
    qualities = []
    try:
        base = make_base(setup, reference, text, partial)
        for done, (name, model) in enumerate(models.items(), start=1):
            if progress:
                progress(done, len(models) + 1)
            qualities.append(measure_model(setup, base, model, name))
        partial.replace(base_path)
    finally:
        partial.unlink(missing_ok=True)
    return replace(base, path=base_path), tuple(qualities)


def make_base(setup: Setup, reference: Path, text: Path, path: Path) -> Base:
    """Evaluate `text` with the master and keep its log probabilities in `path`.

    Raises RequestError when the program fails or the text is too short for it.
    """
    words: list[str | Path] = ["-f", text, "--kl-divergence-base", path]
    if setup.chunks is not None:
        words += ["--chunks", str(setup.chunks)]
    log = setup.log_dir / "reference.log"
    processes.run(setup.command(reference, words), errors_path=log, error=RequestError, what=PROGRAM)
    noise = log.read_text(encoding="utf-8", errors="replace")
    if "you need at least" in noise:
        raise RequestError(
            f"{text}: shorter than two chunks of {setup.context_tokens} tokens",
            hint="take a longer text or a smaller --ctx-size",
            log_path=log,
        )
    base = Base.read(path)
    if base.context_tokens != setup.context_tokens or base.tokens < MIN_TOKENS:
        raise RequestError(
            f"{text}: {base.chunks} chunks of {base.context_tokens} tokens, {base.tokens} positions count; "
            f"at least {MIN_TOKENS} are needed",
            log_path=log,
        )
    estimate = re.search(rf"Final estimate: PPL = {NUMBER} ", noise)
    if estimate is None or not math.isfinite(float(estimate.group(1))):
        raise RequestError(f"{reference}: {PROGRAM} gave no perplexity for it", log_path=log)
    return replace(base, perplexity=float(estimate.group(1)))


def measure_model(setup: Setup, base: Base, model: Path, name: str) -> Quality:
    """Hold one model against the base.

    Raises RequestError when the program fails and IntegrityError when its output cannot be read.
    """
    log = setup.log_dir / f"{name}.log".replace("/", "_")
    words: list[str | Path] = ["--kl-divergence-base", base.path, "--kl-divergence"]
    output = processes.run(setup.command(model, words), errors_path=log, error=RequestError, what=PROGRAM)
    noise = log.read_text(encoding="utf-8", errors="replace")
    for complaint in FATAL:
        if complaint in noise:
            raise RequestError(f"{model}: {PROGRAM} says '{complaint}'", log_path=log)
    found = parse_statistics(output.lines, str(model))
    bits = re.search(r"file size\s*=.*\(([\d.]+) BPW\)", noise)
    kind = re.search(r"file type\s*=\s*(.+)", noise)
    return Quality(
        name=name,
        type_name=kind.group(1).strip() if kind else "",
        size_bytes=model.stat().st_size,
        bits_per_weight=float(bits.group(1)) if bits else None,
        perplexity=found["Mean PPL(Q)"][0],
        perplexity_error=found["Mean PPL(Q)"][1],
        kld_mean=found["Mean KLD"][0],
        kld_mean_error=found["Mean KLD"][1],
        kld_p99=found["99.0% KLD"][0],
        same_top=found["Same top p"][0] / 100,
        same_top_error=found["Same top p"][1] / 100,
        tokens=base.tokens,
    )


def parse_statistics(lines: Sequence[str], model: str) -> dict[str, tuple[float, float]]:
    """Return value and uncertainty (0 where none is printed) of each of `STATISTICS`.

    Raises IntegrityError when a line is missing, there twice or malformed, and RequestError when a figure is
    not a number, as from a model whose logits are NaN.
    """
    found: dict[str, tuple[float, float]] = {}
    for label, uncertain in STATISTICS.items():
        words = r"\s+".join(re.escape(w) for w in label.split())
        tail = rf"\s*±\s*{NUMBER}" if uncertain else "()"
        matches = [m for line in lines if (m := re.match(rf"\s*{words}\s*:\s*{NUMBER}{tail}\s*%?\s*$", line))]
        if len(matches) != 1:
            raise IntegrityError(f"{model}: {PROGRAM} printed '{label}' {len(matches)} times, expected once")
        value, error = float(matches[0].group(1)), float(matches[0].group(2) or 0)
        if not (math.isfinite(value) and math.isfinite(error)):
            raise RequestError(f"{model}: '{label}' is {value} ± {error}: the model gives no probabilities")
        found[label] = (value, error)
    return found
