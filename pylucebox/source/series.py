"""The patch series: reads and checks headers, applies patches strictly."""

import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from pylucebox.core import processes
from pylucebox.core.errors import IntegrityError
from pylucebox.core.receipts import sha256_bytes
from pylucebox.source.lock import safe_path
from pylucebox.source.trees import walk_files

PATCH_NAME = re.compile(r"\d{4}-[a-z0-9]+(-[a-z0-9]+)+\.patch")
REQUIRED = ("Description", "Class", "Origin", "Upstream-Status", "Tests", "Last-Update")
PROOF = "Fails-Without"  # of a fix: the test that fails when the patch is left out, and how
# Class -> most changed lines. A hook registers overlay code, a fix repairs upstream behaviour.
MAX_CHANGED_LINES = {"hook": 60, "fix": 200}
UPSTREAM_STATUS = re.compile(
    r"Pending|Submitted \[.+\]|Backport \[.+\]|Denied( \[.+\])?|Inactive-Upstream \[.+\]|Inappropriate \[.+\]"
)
MOVED_HUNK = re.compile(r"Hunk #\d+ succeeded at \d+ \(offset ")
RESTORE = "restore the file, for example from git"
OTHER_CHANGES = ("rename ", "copy ", "old mode ", "new mode ", "GIT binary patch")
# No setting of the user's or of a surrounding repository may change what a patch does.
GIT_ENV = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_DIR": None,
    "GIT_WORK_TREE": None,
    "GIT_INDEX_FILE": None,
    "LC_ALL": "C",
}


@dataclass(frozen=True)
class Patch:
    """One patch file: its DEP-3 header, the files it names, and how many lines it changes."""

    path: Path
    headers: dict[str, str]
    files: tuple[str, ...]
    changed_lines: int
    other_changes: bool  # renames, file modes, binary content

    @property
    def name(self) -> str:
        return self.path.name

    @classmethod
    def load(cls, path: Path) -> "Patch":
        """Read a patch. Raises IntegrityError when the file is missing or names a path outside the tree."""
        try:
            return cls.parse(path, path.read_text(encoding="utf-8", errors="replace"))
        except (OSError, ValueError) as bad:
            raise IntegrityError(f"{path}: named in series but cannot be read: {bad}", hint=RESTORE) from bad

    @classmethod
    def parse(cls, path: Path, text: str) -> "Patch":
        """Read the text of the patch at `path`. Raises ValueError for a path outside the tree."""
        lines = text.splitlines()
        body = next((i for i, line in enumerate(lines) if line.startswith(("---", "diff "))), len(lines))
        files, changed = _body_facts(lines[body:])
        other = any(line.startswith(OTHER_CHANGES) for line in lines[body:])
        return cls(path, _headers(lines[:body]), files, changed, other)


def read_series(patches_dir: Path) -> list[Patch]:
    """Return the patches of `patches_dir` in the order of its `series` file."""
    return [Patch.load(patches_dir / name) for name in series_names(patches_dir)]


def series_names(patches_dir: Path) -> list[str]:
    """Return the names in `series`; a line that starts with # is a comment."""
    try:
        return parse_series((patches_dir / "series").read_text(encoding="utf-8"))
    except (OSError, ValueError) as bad:
        raise IntegrityError(f"{patches_dir / 'series'}: cannot be read: {bad}", hint=RESTORE) from bad


def parse_series(text: str) -> list[str]:
    """Return the names that the text of `series` lists. Raises ValueError for one that is no file name."""
    names = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for name in names:
        if "/" in name or "\0" in name or name in (".", ".."):
            raise ValueError(f"'{name}' is not the name of a patch in this folder")
    return names


def series_digest(patches_dir: Path) -> str:
    """Return one hash over the names and contents of all patches, in order.

    Raises IntegrityError when one is missing.
    """
    parts = []
    for path in (patches_dir / name for name in series_names(patches_dir)):
        try:
            parts.append(f"{path.name} {sha256_bytes(path.read_bytes())}")
        except OSError as bad:
            raise IntegrityError(
                f"{path}: named in series but cannot be read: {bad.strerror}", hint=RESTORE
            ) from bad
    return sha256_bytes("\n".join(parts).encode())


def apply_patch(patch: Patch, tree: Path) -> None:
    """Apply one patch to `tree`, without fuzz, all of it or nothing.

    Raises IntegrityError naming patch, file and reason; also when git said nothing but left a file as it was.
    """
    before = {name: _content(tree / name) for name in patch.files}
    try:
        processes.run(
            ["git", "apply", "--whitespace=nowarn", patch.path.resolve()],
            cwd=tree,
            env=git_env(tree),
            error=IntegrityError,
            what="git apply",
        )
    except IntegrityError as bad:
        reasons = [line.removeprefix("error: ") for line in bad.log_tail if line.startswith("error: ")]
        raise IntegrityError(
            f"{patch.name} does not apply: {reasons[0] if reasons else bad.message}",
            log_tail=reasons[1:],
            hint="refresh the patch against the locked source",
        ) from bad
    same = [name for name in patch.files if _content(tree / name) == before[name]]
    if same:
        raise IntegrityError(
            f"{patch.name}: git apply left {same[0]} unchanged", hint="check the paths the patch names"
        )


def moved_hunks(patch: Patch, tree: Path) -> int:
    """Return how many hunks of a patch that applies to `tree` fit at other lines than they say."""
    argv: list[str | Path] = [
        "git",
        "apply",
        "--check",
        "--verbose",
        "--whitespace=nowarn",
        patch.path.resolve(),
    ]
    done = processes.run(argv, cwd=tree, env=git_env(tree), error=IntegrityError, what="git apply")
    return sum(bool(MOVED_HUNK.match(line)) for line in done.lines)


def git_env(tree: Path) -> dict[str, str | None]:
    """Return the environment in which git works on `tree` as on any folder, whatever lies around it."""
    return {**GIT_ENV, "GIT_CEILING_DIRECTORIES": str(tree.resolve().parent)}


def check_series(patches_dir: Path) -> list[str]:
    """Return what is wrong with names, headers, sizes and the list itself; empty when all is well."""
    names = series_names(patches_dir)
    folder = {p.name for p in patches_dir.glob("*") if p.is_file()} - {"series"}
    found = [f"series: {n} is listed but not there" for n in names if n not in folder]
    found += [f"{n}: not listed in series" for n in sorted(folder - set(names))]
    found += [f"series: {n} is listed twice" for n in sorted({n for n in names if names.count(n) > 1})]
    if sorted(names) != names:
        found.append("series: not in the order of the numbers")
    for name in names:
        if name in folder:
            found += [f"{name}: {problem}" for problem in _patch_problems(Patch.load(patches_dir / name))]
    overlay = patches_dir / "overlay"
    if overlay.is_dir():
        patched = {f for n in names if n in folder for f in Patch.load(patches_dir / n).files}
        found += [f"overlay/{path}: also named by a patch" for path in walk_files(overlay) if path in patched]
    return found


def _patch_problems(patch: Patch) -> list[str]:
    found = []
    if not PATCH_NAME.fullmatch(patch.name):
        found.append("the name is not NNNN-area-what.patch")
    found += [f"header {key} is missing or empty" for key in REQUIRED if not patch.headers.get(key)]
    kind, status = patch.headers.get("Class", ""), patch.headers.get("Upstream-Status", "")
    if kind and kind not in MAX_CHANGED_LINES:
        found.append(f"Class is '{kind}', not hook or fix")
    elif kind and patch.changed_lines > MAX_CHANGED_LINES[kind]:
        found.append(f"{patch.changed_lines} changed lines; a {kind} has at most {MAX_CHANGED_LINES[kind]}")
    if status and not UPSTREAM_STATUS.fullmatch(status):
        found.append(f"Upstream-Status '{status}' is not one of Yocto's, with its [reason]")
    if not patch.files:
        found.append("changes no file")
    if patch.other_changes:
        found.append("renames, modes and binary content are not for patches")
    found += _date_problems(patch.headers.get("Last-Update", "")) + _test_problems(patch)
    return found + (_fix_problems(patch) if kind == "fix" else [])


def _fix_problems(patch: Patch) -> list[str]:
    """A fix says which test fails without it, and how."""
    proof = patch.headers.get(PROOF, "")
    if not proof:
        return [f"header {PROOF} is missing or empty; a fix says which test fails without it"]
    named = proven_test(patch)
    if named.partition("::")[0] not in named_tests(patch):
        return [f"{PROOF} begins with '{named}', which is no test that Tests names"]
    return []


def proven_test(patch: Patch) -> str:
    """Return the test, FILE::NAME, that a fix says fails without it."""
    words = patch.headers.get(PROOF, "").split()
    return words[0].rstrip(":") if words else ""


def named_tests(patch: Patch) -> list[str]:
    return [name for name in re.split(r"[,\s]+", patch.headers.get("Tests", "")) if name]


def _date_problems(text: str) -> list[str]:
    try:
        if text:
            date.fromisoformat(text)
    except ValueError:
        return [f"Last-Update '{text}' is not YYYY-MM-DD"]
    return []


def _test_problems(patch: Patch) -> list[str]:
    """A named test must exist; an installed package has no tests to compare with."""
    root = patch.path.resolve().parent.parent
    if not (root / "tests").is_dir():
        return []
    found = [
        f"Tests names {n}, which is not there"
        for n in named_tests(patch)
        if not (root / n).exists() and not (patch.path.parent / "overlay" / n).exists()
    ]
    file, _, name = proven_test(patch).partition("::")
    if name and (root / file).is_file() and f"def {name}(" not in (root / file).read_text(encoding="utf-8"):
        found.append(f"{PROOF} names {name}, which {file} does not have")
    return found


def _headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    key = ""
    for line in lines:
        name, colon, value = line.partition(":")
        if line[:1].isspace() and key:
            headers[key] += "\n" + line.strip()
        elif colon and name.replace("-", "").isalnum():
            key = name
            headers[key] = value.strip()
    return headers


def _body_facts(lines: list[str]) -> tuple[tuple[str, ...], int]:
    """Return the files a diff names and its changed lines; hunk sizes decide what is a header line."""
    files: dict[str, None] = {}
    changed = old = new = 0
    for line in lines:
        if old > 0 or new > 0:
            old -= line[:1] != "+" and line[:1] != "\\"
            new -= line[:1] != "-" and line[:1] != "\\"
            changed += line[:1] in ("+", "-")
        elif line.startswith("@@"):
            old, new = _hunk_sizes(line)
        elif line.startswith(("--- ", "+++ ")):
            name = line[4:].split("\t")[0].strip()
            if name != "/dev/null":
                files[safe_path(name.partition("/")[2])] = None
    return tuple(files), changed


def _hunk_sizes(line: str) -> tuple[int, int]:
    match = re.match(r"@@ -\d+(?:,(\d{1,9}))? \+\d+(?:,(\d{1,9}))? @@", line)
    return (int(match[1] or 1), int(match[2] or 1)) if match else (0, 0)


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
