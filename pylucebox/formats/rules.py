"""Rules files: a line `PATTERN = TYPE` gives the tensors it matches another type than the file type does.

PATTERN is a regular expression that is searched in the name, as llama-quantize's --tensor-type takes it. The
first line that matches a tensor decides. `#` starts a comment.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pylucebox.core.errors import RequestError, did_you_mean
from pylucebox.formats.gguf_types import TYPES, TensorType

UNWRITABLE = ("I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K")  # no weights, or types of activations
FORM = "give a file of lines such as: ffn_down_exps = q3_0_rocmfpx"
WRITABLE = tuple(name for name in TYPES if name not in UNWRITABLE)


@dataclass(frozen=True)
class TypeRule:
    """One line of a rules file."""

    line: int
    pattern: re.Pattern[str]
    type: TensorType


@dataclass(frozen=True)
class TypeRules:
    """A rules file."""

    path: Path
    rules: tuple[TypeRule, ...]

    def fail(self, rule: TypeRule, what: str, hint: str | None = None) -> RequestError:
        """Return an error that names the file, the line and the pattern."""
        return RequestError(f"{self.path}:{rule.line}: '{rule.pattern.pattern}' {what}", hint=hint)

    def resolve(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, TypeRule]:
        """Return the rule of every tensor that has one. shapes: of the model's matrices, rows first.

        Raises RequestError naming the line of a rule that no tensor is left for, or that fits no row.
        """
        found: dict[str, TypeRule] = {}
        for rule in self.rules:
            matching = [name for name in shapes if rule.pattern.search(name)]
            if not matching:
                raise self.fail(rule, "matches no matrix of the model", _nearest(rule, shapes))
            free = [name for name in matching if name not in found]
            if not free:
                raise self.fail(
                    rule, f"is never used: line {found[matching[0]].line} takes all that it matches"
                )
            for name in free:
                columns = shapes[name][-1]
                if columns % rule.type.block_values:
                    raise self.fail(
                        rule,
                        f"cannot make {name} {rule.type.name}: rows of {columns} are no multiple of"
                        f" {rule.type.block_values}",
                    )
                found[name] = rule
        return found

    def require_effect(self, wanted: Mapping[str, TypeRule], given: Mapping[str, TensorType]) -> None:
        """Raise RequestError naming a rule that would change nothing: all its tensors keep other types.

        wanted: from `resolve`. given: the types the tensors get.
        """
        for rule in self.rules:
            names = [name for name, other in wanted.items() if other is rule]
            if names and all(given[name] != rule.type for name in names):
                raise self.fail(
                    rule,
                    f"matches only tensors that stay as stored: {names[0]} is {given[names[0]].name}",
                    "leave the line out: rounding these costs far more quality than it saves bytes",
                )


def read_rules(path: Path) -> TypeRules:
    """Read the rules file at `path`. Raises RequestError naming file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror or error}", hint=FORM) from error
    except UnicodeDecodeError as bad:
        raise RequestError(f"{path}: is not UTF-8 text", hint=FORM) from bad
    rules = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if line:
            rules.append(_parse(path, number, line))
    if not rules:
        raise RequestError(f"{path}: holds no rule", hint=FORM)
    return TypeRules(path, tuple(rules))


def _parse(path: Path, number: int, line: str) -> TypeRule:
    pattern, equals, name = (part.strip() for part in line.rpartition("="))
    if not (equals and pattern and name):
        raise RequestError(f"{path}:{number}: '{line}' is not PATTERN = TYPE", hint=FORM)
    if name.upper() not in WRITABLE:
        raise RequestError(
            f"{path}:{number}: no tensor type '{name}'{did_you_mean(name, [n.lower() for n in WRITABLE])}",
            hint=f"known are {', '.join(sorted(n.lower() for n in WRITABLE))}",
        )
    try:
        return TypeRule(number, re.compile(pattern), TYPES[name.upper()])
    except re.error as bad:
        raise RequestError(
            f"{path}:{number}: '{pattern}' is no regular expression: {bad}", hint=FORM
        ) from bad


def _nearest(rule: TypeRule, shapes: Mapping[str, tuple[int, ...]]) -> str:
    kinds = list(dict.fromkeys(re.sub(r"^blk\.\d+\.", "", name) for name in shapes))
    plain = rule.pattern.pattern.replace("\\", "").removeprefix("blk.")
    return f"names are like {kinds[0]}{did_you_mean(plain, kinds)}"
