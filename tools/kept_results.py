"""Results of compiling, kept by the content of every file that the compiler read."""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any


def key(*parts: Any) -> str:
    """Return a name for what decides a result besides the files that are read: command, versions, rules."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


@cache
def digest(path: Path) -> str:
    """Return the hash of a file as it was when first asked, "" when it is not there."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def digest_of(paths: Iterable[Path]) -> str:
    """Return one hash over several files."""
    return hashlib.sha256("".join(map(digest, paths)).encode()).hexdigest()


def save(path: Path, result: dict[str, Any], read: Sequence[Path]) -> None:
    """Keep a result; two processes may keep the same one at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    text = json.dumps({"read": {str(p): digest(p) for p in read}, "result": result})
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def load(path: Path) -> dict[str, Any] | None:
    """Return a kept result when everything that was read then is the same now."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        same = all(digest(Path(name)) == then for name, then in plain["read"].items())
        result: dict[str, Any] = plain["result"]
        return result if same else None
    except (OSError, ValueError, KeyError):
        return None


def read_dependencies(rule: Path) -> list[Path]:
    """Return the files that a compiler's make rule (-MF) names."""
    text = rule.read_text(encoding="utf-8").replace("\\\n", " ").partition(": ")[2]
    return [Path(word.replace("\\ ", " ")) for word in re.split(r"(?<!\\)\s+", text) if word]
