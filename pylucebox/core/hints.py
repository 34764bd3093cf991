"""Advice for failed steps, from the patterns in hints.toml."""

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

TABLE = Path(__file__).with_name("hints.toml")


def find_hint(lines: Iterable[str]) -> str | None:
    """Return the advice whose pattern fits one of `lines`, the latest line first, or None."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))["hint"]
    patterns = [(re.compile(row["pattern"]), str(row["advice"])) for row in table]
    for line in reversed(list(lines)):
        for pattern, advice in patterns:
            if pattern.search(line):
                return advice
    return None
