"""Result files: everything needed to repeat a figure, to doubt it, and to see when it is out of date."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pylucebox.core.errors import IntegrityError, RequestError
from pylucebox.core.paths import check_output
from pylucebox.measure.compare import Comparison, Interval, Round, level, paired_ratio
from pylucebox.measure.machine import Machine
from pylucebox.measure.sources import Source

SCHEMA = 1
REMEDY = "restore the file, for example from git, or measure again"
TOLERANCE = 1e-9  # relative; figures are computed again on reading, in the same precision


@dataclass(frozen=True)
class Level:
    """One arm on its own, measured as both sides of a comparison.

    samples: four a round, those of side A first.
    """

    case: str
    arm: str
    unit: str
    samples: tuple[Round, ...]

    @classmethod
    def of(cls, itself: Comparison) -> "Level":
        """Make a level of an arm that was compared to itself."""
        sides = zip(itself.samples_a, itself.samples_b, strict=True)
        return cls(itself.case, itself.arm_a, itself.unit, tuple((*a, *b) for a, b in sides))

    @property
    def value(self) -> Interval:
        """The geometric mean of all samples; n is the rounds."""
        return level(self.samples)

    @property
    def noise(self) -> Interval:
        """The ratio of the arm to itself."""
        return paired_ratio([r[:2] for r in self.samples], [r[2:] for r in self.samples])


@dataclass(frozen=True)
class Quality:
    """One model held against the F32 master. Uncertainties are one standard error, as upstream prints them.

    size_bytes: of the file. bits_per_weight: of its tensors, None where the program did not say.
    kld_*: KL divergence in nats. same_top: share of positions with the master's most likely token.
    """

    name: str
    type_name: str
    size_bytes: int
    bits_per_weight: float | None
    perplexity: float
    perplexity_error: float
    kld_mean: float
    kld_mean_error: float
    kld_p99: float
    same_top: float
    same_top_error: float
    tokens: int


@dataclass(frozen=True)
class Result:
    """A measurement as it is kept.

    what: one line for a heading. date: ISO. receipts: side -> receipt id of the build that ran.
    settings: options that decide the figures, as text. n: see each interval.
    """

    what: str
    date: str
    command: str
    machine: Machine
    receipts: Mapping[str, str]
    source: Source
    settings: Mapping[str, str] = field(default_factory=dict)
    comparisons: tuple[Comparison, ...] = ()
    levels: tuple[Level, ...] = ()
    qualities: tuple[Quality, ...] = ()

    def save(self, path: Path) -> None:
        """Write the file so that it is complete or absent. Raises RequestError when it cannot be written."""
        write_text(path, json.dumps(self.to_json(), indent=1) + "\n")

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object. Besides the samples it holds the figures that follow from them."""
        plain = asdict(self)
        for written, comparison in zip(plain["comparisons"], self.comparisons, strict=True):
            written["ratio"] = asdict(comparison.ratio)
            written["noise"] = asdict(comparison.noise) if comparison.noise else None
            written["significant"] = comparison.significant
        for written, one in zip(plain["levels"], self.levels, strict=True):
            written["value"] = asdict(one.value)
            written["noise"] = asdict(one.noise)
        return {"schema": SCHEMA, **plain}


def write_text(path: Path, text: str) -> None:
    """Write a file so that it is complete or absent. Raises RequestError when it cannot be written."""
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        check_output(path)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise RequestError(f"{path}: cannot be written ({error.strerror})") from error


def load(path: Path) -> Result:
    """Read a result file.

    Raises RequestError when it is absent and IntegrityError when a field is missing or unknown, or when a
    figure does not follow from the samples.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path}: not JSON ({error})", hint=REMEDY) from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else None
        raise IntegrityError(f"{path}: field 'schema' is {found!r}, this version reads {SCHEMA}", hint=REMEDY)
    try:
        result = _from_json(json.loads(path.read_text(encoding="utf-8")))
        computed = json.loads(json.dumps(result.to_json()))
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as bad:
        raise IntegrityError(f"{path}: field missing, unknown or malformed: {bad}", hint=REMEDY) from bad
    wrong = _difference(computed, data)
    if wrong:
        raise IntegrityError(f"{path}: field '{wrong}' does not follow from the samples", hint=REMEDY)
    return result


def _from_json(data: dict[str, Any]) -> Result:
    """Take the object apart; `data` is used up."""
    del data["schema"]
    machine, source = data.pop("machine"), data.pop("source")
    comparisons, levels = data.pop("comparisons"), data.pop("levels")
    qualities = tuple(Quality(**q) for q in data.pop("qualities"))
    for written in comparisons:
        del written["ratio"], written["noise"], written["significant"]
        for name in ("samples_a", "samples_b", "noise_a", "noise_b"):
            written[name] = _rounds(written[name])
    for written in levels:
        del written["value"], written["noise"]
        written["samples"] = _rounds(written["samples"])
    return Result(
        machine=Machine(**{**machine, "isa": tuple(machine["isa"])}),
        source=Source(tuple(source["files"]), str(source["sha256"])),
        comparisons=tuple(Comparison(**c) for c in comparisons),
        levels=tuple(Level(**one) for one in levels),
        qualities=qualities,
        **data,
    )


def _rounds(values: list[list[float]]) -> tuple[Round, ...]:
    return tuple(tuple(float(v) for v in values_of_round) for values_of_round in values)


def _difference(ours: Any, theirs: Any, name: str = "") -> str:
    """Return the name of the first field in which two JSON values differ, or ""."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        found = (_difference(ours[k], theirs[k], f"{name}.{k}".lstrip(".")) for k in ours)
        return next((f for f in found if f), "")
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return next((f for f in (_difference(a, b, f"{name}[{i}]") for i, (a, b) in pairs) if f), "")
    if isinstance(ours, float) and isinstance(theirs, int | float):
        return "" if abs(ours - theirs) <= TOLERANCE * abs(ours) else name
    return "" if ours == theirs else name or "(top)"
