"""What another upstream release would break: hunks of the series, names the overlay uses, our ids."""

import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pylucebox.core.errors import IntegrityError
from pylucebox.core.receipts import sha256_file
from pylucebox.source.lock import Lock
from pylucebox.source.refresh import apply_what_fits
from pylucebox.source.series import Patch, apply_patch, moved_hunks
from pylucebox.source.trees import walk_files

SECTION = re.compile(r"^(?=diff --git |--- (?:a/|/dev/null))", re.MULTILINE)
HUNK = re.compile(r"^@@ -(\d+).*$", re.MULTILINE)
IDENTIFIER = re.compile(r"\b(?=\w*_)[A-Za-z]\w{4,}\b")
TARGET = re.compile(r"\b[A-Za-z]\w*(?:-\w+)+\b")  # of CMake
CMAKE = (".txt", ".cmake")
HEADERS = (".h", ".hpp", ".cuh", *CMAKE)
SOURCES = (*HEADERS, ".c", ".cpp", ".cu")
AROUND = 2  # lines of upstream shown on each side of the place that fits best


@dataclass(frozen=True)
class FailedHunk:
    """A hunk that does not fit: what it wants to find and do, and upstream's lines where that comes closest.

    line: the first line shown of `theirs`, counted from 1; 0 when the file is gone.
    """

    file: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class Outcome:
    """How one patch fared. moved: hunks that fit at other lines. note: what else there is to know."""

    patch: str
    failed: tuple[FailedHunk, ...]
    moved: int = 0
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.failed:
            files = len({hunk.file for hunk in self.failed})
            return f"fails: {_count(len(self.failed), 'hunk')} in {_count(files, 'file')}"
        return f"applies, {_count(self.moved, 'hunk')} at other lines" if self.moved else "applies"


@dataclass(frozen=True)
class Ids:
    """The numbers upstream gives away. types and file_types: id -> name; type_count is one past the last.

    ops: how many there are. rpc: version of the protocol, MAJOR.MINOR.PATCH.
    """

    types: Mapping[int, str]
    type_count: int
    file_types: Mapping[int, str]
    ops: int
    rpc: str


def rehearse_series(lock: Lock, patches: Sequence[Patch], tree: Path) -> list[Outcome]:
    """Apply the series to `tree` in order, as far as it fits, and tell how every patch fared.

    What fits of a failing patch is applied, so that one failure does not make the next.
    """
    results = {d.patch: (d.path, d.result) for d in lock.deviations}
    outcomes = []
    for patch in patches:
        path, result = results.get(patch.name, ("", ""))
        if path and (tree / path).is_file() and sha256_file(tree / path) == result:
            outcomes.append(Outcome(patch.name, (), note=f"{path} has its final form already"))
            continue
        outcome = _rehearse(patch, tree)
        if path and not outcome.failed and sha256_file(tree / path) != result:
            outcome = Outcome(patch.name, (), outcome.moved, f"{path}: the lock's result must change")
        outcomes.append(outcome)
    return outcomes


def _rehearse(patch: Patch, tree: Path) -> Outcome:
    """Apply a patch file by file, since git refuses all of a patch that names a file that is gone."""
    failed: list[FailedHunk] = []
    moved = 0
    with tempfile.TemporaryDirectory(prefix="lucebox-") as name:
        text = patch.path.read_text(encoding="utf-8")
        for section in _by_file(text):
            part_path = Path(name) / patch.name
            part_path.write_text("---\n" + section, encoding="utf-8")
            part = Patch.load(part_path)
            with suppress(IntegrityError):
                moved += moved_hunks(part, tree)
                apply_patch(part, tree)
                continue
            failed += _failures(part, section, tree)
    return Outcome(patch.name, tuple(failed), moved)


def _by_file(text: str) -> list[str]:
    """Return the sections of a patch, one a file; git's own header lines stay with theirs."""
    sections = [s for s in SECTION.split(text) if s.startswith(("diff ", "--- a/", "--- /dev/null"))]
    joined: list[str] = []
    for section in sections:
        if joined and joined[-1].startswith("diff ") and "@@" not in joined[-1]:
            joined[-1] += section
        else:
            joined.append(section)
    return joined


def _failures(part: Patch, section: str, tree: Path) -> list[FailedHunk]:
    path = part.files[0]
    if not (tree / path).is_file():
        return [FailedHunk(path, tuple(hunk), ("(the file is gone)",), 0) for _, hunk in _hunks(section)]
    apply_what_fits(part, tree)
    rejected = tree / (path + ".rej")
    text = rejected.read_text(encoding="utf-8", errors="replace") if rejected.is_file() else section
    rejected.unlink(missing_ok=True)
    lines = (tree / path).read_text(encoding="utf-8", errors="replace").splitlines()
    return [_beside(path, hunk, lines, start) for start, hunk in _hunks(text)]


def _hunks(text: str) -> list[tuple[int, list[str]]]:
    """Return first old line and lines of every hunk."""
    pieces = HUNK.split(text)[1:]
    return [(int(pieces[i]), pieces[i + 1].strip("\n").split("\n")) for i in range(0, len(pieces), 2)]


def _beside(path: str, hunk: Sequence[str], lines: Sequence[str], start: int) -> FailedHunk:
    old = [line[1:] for line in hunk if line[:1] in (" ", "-")]
    place = closest_place(old, lines, start - 1)
    first = max(place - AROUND, 0)
    return FailedHunk(path, tuple(hunk), tuple(lines[first : place + len(old) + AROUND]), first + 1)


def closest_place(wanted: Sequence[str], lines: Sequence[str], near: int) -> int:
    """Return the index in `lines` at which most of `wanted` lines up; of equals the one closest to `near`.

    A line counts by how rare it is, and one as short as a brace not at all.
    """
    places: dict[str, list[int]] = {}
    for index, line in enumerate(lines):
        places.setdefault(line.strip(), []).append(index)
    votes: dict[int, float] = {}
    for offset, line in enumerate(wanted):
        found = places.get(line.strip(), []) if len(line.strip()) > 2 else []
        for index in found:
            start = max(index - offset, 0)
            votes[start] = votes.get(start, 0.0) + 1 / len(found)
    nowhere = min(max(near, 0), max(len(lines) - 1, 0))
    return max(votes, key=lambda start: (votes[start], -abs(start - near)), default=nowhere)


def missing_anchors(overlay: Path, old: Path, new: Path) -> dict[str, list[str]]:
    """Return the names that overlay files take from headers and CMake files of `old` and `new` lacks.

    Name -> overlay files that use it. Under "(upstream has it)" are overlay files that upstream has too.
    """
    uses: dict[str, list[str]] = {}
    for path in walk_files(overlay):
        if path.endswith(SOURCES):
            for name in _names([overlay / path]):
                uses.setdefault(name, []).append(path)
    declared = _names(old / p for p in walk_files(old) if p.endswith(HEADERS)) & set(uses)
    gone = declared - _names(new / p for p in walk_files(new) if p.endswith(SOURCES))
    found = {name: uses[name] for name in sorted(gone)}
    taken = [path for path in walk_files(overlay) if (new / path).is_file()]
    return {**found, **({"(upstream has it)": taken} if taken else {})}


def _names(files: Iterable[Path]) -> set[str]:
    found: set[str] = set()
    for file in files:
        text = file.read_text(encoding="utf-8", errors="replace")
        found.update(IDENTIFIER.findall(text))
        if file.name.endswith(CMAKE):
            found.update(TARGET.findall(text))
    return found


def read_ids(tree: Path) -> Ids:
    """Read upstream's ids from its public headers. Raises IntegrityError naming the header that lacks one."""
    ggml, llama, rpc = "ggml/include/ggml.h", "include/llama.h", "ggml/include/ggml-rpc.h"
    types = enum_values(_text(tree, ggml), "ggml_type")
    ops = enum_values(_text(tree, ggml), "ggml_op")
    file_types = enum_values(_text(tree, ggml), "ggml_ftype") | enum_values(_text(tree, llama), "llama_ftype")
    version = re.findall(r"#define RPC_PROTO_(?:MAJOR|MINOR|PATCH)_VERSION\s+(\d+)", _text(tree, rpc))
    if "GGML_TYPE_COUNT" not in types or "GGML_OP_COUNT" not in ops or len(version) != 3:
        raise IntegrityError(f"{tree}: no type count, op count or RPC version where upstream keeps them")
    return Ids(
        types={value: name for name, value in types.items() if name != "GGML_TYPE_COUNT"},
        type_count=types["GGML_TYPE_COUNT"],
        file_types={value: name for name, value in file_types.items()},
        ops=ops["GGML_OP_COUNT"],
        rpc=".".join(version),
    )


def our_ids(overlay: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids of our tensor types and of our file types, from the overlay's list."""
    text = _text(overlay, "ggml/include/ggml-rocmfpx-types.h")
    types, _, rest = text.partition("#define ROCMFPX_FTYPES")
    entry = re.compile(r"^\s+X\((\d+),", re.MULTILINE)
    end = re.search(r"^//.*clang-format on", rest, re.MULTILINE)
    rest = rest[: end.start()] if end else rest
    return tuple(map(int, entry.findall(types))), tuple(map(int, entry.findall(rest)))


def enum_values(text: str, name: str) -> dict[str, int]:
    """Return the members of a C enum of plain numbers; a member whose value is an expression is left out."""
    match = re.search(rf"enum\s+{name}\s*\{{(.*?)\}}", text, re.DOTALL)
    body = re.sub(
        r"/\*.*?\*/|//[^\n]*|^\s*#[^\n]*", "", match[1] if match else "", flags=re.DOTALL | re.MULTILINE
    )
    values: dict[str, int] = {}
    following: int | None = 0
    for member in filter(None, (m.strip() for m in body.split(","))):
        key, _, value = (part.strip() for part in member.partition("="))
        if value:
            following = int(value, 0) if re.fullmatch(r"-?\d+|0x[0-9a-fA-F]+", value) else values.get(value)
        if following is not None:
            values[key] = following
            following += 1
    return values


def _text(tree: Path, path: str) -> str:
    try:
        return (tree / path).read_text(encoding="utf-8", errors="replace")
    except OSError as bad:
        raise IntegrityError(f"{tree / path}: cannot be read: {bad.strerror}") from bad


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
