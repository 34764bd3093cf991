"""Rehearse or begin a move to another upstream release: `python tools/bump_upstream.py --archive FILE`.

Writes lock, manifest and report of the release into a scratch folder: which patches fail, with our hunk and
upstream's lines, which names the overlay uses are gone, which ids ran into ours. With --write lock and
manifest replace those in vendor/; nothing else ever changes there.
"""

import argparse
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from make_manifest import is_built

from pylucebox.core.errors import LuceboxError, MissingError, RequestError
from pylucebox.core.paths import LOCK_NAME, MANIFEST_NAME, Layout, find_layout
from pylucebox.core.receipts import sha256_bytes, sha256_file
from pylucebox.source.bump import Ids, Outcome, missing_anchors, our_ids, read_ids, rehearse_series
from pylucebox.source.lock import Lock
from pylucebox.source.patches import copy_files
from pylucebox.source.series import read_series
from pylucebox.source.trees import walk_files, write_if_different

ANCHOR = "ggml/include/ggml.h"  # lies at a fixed place below the root of every release
SHOWN_FILES = 3
FIRST_BUILD = 3000  # release numbers below are years, months or revisions of a packager
MARKED = re.compile(r"^(<!-- rehearsal -->\n).*?^(<!-- /rehearsal -->)$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Release:
    """Another release: its built files in `tree`, and what the lock says of the archive they came in."""

    tree: Path
    build: int
    name: str
    version: str
    root: str
    archive: Path | None


def unpack(archive: Path, folder: Path, build: int | None) -> Release:
    """Write the files we build from an archive NAME-VERSION.tar.gz into `folder`/upstream."""
    match = re.fullmatch(r"(.+?)-(\d[^-]*)\.tar\.\w+", archive.name)
    if not match:
        raise RequestError(f"{archive}: is not called NAME-VERSION.tar.gz")
    tree, root = folder / "upstream", None
    try:
        with tarfile.open(archive) as tar:
            names = [member.name for member in tar if member.name.endswith("/" + ANCHOR)]
            if not names:
                raise RequestError(f"{archive}: holds no {ANCHOR}")
            root = min(names, key=len).removesuffix("/" + ANCHOR)
            for path, data in members(tar, root):
                (tree / path).parent.mkdir(parents=True, exist_ok=True)
                (tree / path).write_bytes(data)
    except (OSError, tarfile.TarError, EOFError) as bad:
        raise RequestError(f"{archive}: not a readable archive: {bad}") from bad
    name, version = match[1].replace("_", "-"), match[2]
    return Release(tree, build or build_number(version), name, version, root.partition("/")[2], archive)


def members(tar: tarfile.TarFile, root: str) -> Iterator[tuple[str, bytes]]:
    """Yield path below `root` and content of the files we build; a name with .. in it is passed over."""
    for member in tar:
        path = member.name.removeprefix(root + "/")
        if member.isfile() and path != member.name and ".." not in path.split("/") and is_built(path):
            stream = tar.extractfile(member)
            assert stream is not None
            yield path, stream.read()


def copy_source(source: Path, folder: Path, build: int) -> Release:
    """Copy the files we build from a source folder into `folder`/upstream."""
    if not (source / ANCHOR).is_file():
        raise RequestError(f"{source}: holds no {ANCHOR}")
    tree = folder / "upstream"
    copy_files(filter(is_built, walk_files(source)), source, tree)
    return Release(tree, build, source.name, "", "", None)


def build_number(version: str) -> int:
    """Return the part of a packager's version that is upstream's build number."""
    found = [int(part) for part in re.findall(r"\d+", version) if int(part) >= FIRST_BUILD]
    if len(found) != 1:
        raise RequestError(f"version {version}: holds no build number; give it with --build")
    return found[0]


def manifest_text(tree: Path) -> str:
    return "".join(f"{sha256_bytes((tree / p).read_bytes())}  {p}\n" for p in walk_files(tree))


def lock_text(old: str, release: Release) -> str:
    """Return the lock with the values of another archive; comments and deviations stay as they are."""
    assert release.archive is not None
    values = {
        "build": str(release.build),
        "tag": f'"b{release.build}"',
        "name": f'"{release.name}"',
        "version": f'"{release.version}"',
        "filename": f'"{release.archive.name}"',
        "sha256": f'"{sha256_file(release.archive)}"',
        "size_bytes": str(release.archive.stat().st_size),
        "root": f'"{release.root}"',
    }
    for key, value in values.items():
        old, count = re.subn(rf'^{key} = ("[^"]*"|\d+)', f"{key} = {value}", old, count=1, flags=re.MULTILINE)
        if count != 1:
            raise RequestError(f"{LOCK_NAME}: has no line '{key} ='")
    return old


def id_rows(here: Ids, there: Ids, layout: Layout) -> list[str]:
    """Return the table that holds upstream's ids, before and after, against ours."""
    types, file_types = our_ids(layout.patches_dir / "overlay")
    series = "\n".join(p.path.read_text(encoding="utf-8") for p in read_series(layout.patches_dir))
    ours = re.search(r"^\+#define RPC_PROTO_MAJOR_VERSION\s+(\d+)", series, re.MULTILINE)
    asserted = re.search(r"^\+static_assert\(GGML_OP_COUNT == (\d+)", series, re.MULTILINE)
    kinds = [max(i for i in ids.file_types if i < 1000) for ids in (here, there)]
    in_types = sorted(set(there.types) & set(types))
    in_kinds = sorted(set(there.file_types) & set(file_types))
    free = f"taken: {in_types}" if in_types else "free"
    free_kinds = f"taken: {in_kinds}" if in_kinds else "free"
    same_ops = "as it was" if here.ops == there.ops else "the assertion of our patch must change"
    same_rpc = "as it was" if here.rpc == there.rpc else "ours must change too"
    return [
        "| id | here | there | ours | |",
        "| --- | --- | --- | --- | --- |",
        f"| GGML_TYPE_COUNT | {here.type_count} | {there.type_count} | {span(types)} | {free} |",
        f"| last file type | {kinds[0]} | {kinds[1]} | {span(file_types)} | {free_kinds} |",
        f"| GGML_OP_COUNT | {here.ops} | {there.ops} | {asserted[1] if asserted else '-'} | {same_ops} |",
        f"| RPC version | {here.rpc} | {there.rpc} | {ours[1] if ours else '-'} | {same_rpc} |",
    ]


def span(ids: tuple[int, ...]) -> str:
    return f"{min(ids)} to {max(ids)}" if ids else "-"


def summary(layout: Layout, lock: Lock, release: Release, outcomes: list[Outcome]) -> str:
    """Return what breaks, as Markdown tables."""
    failing = sum(bool(outcome.failed) for outcome in outcomes)
    lines = [f"From {lock.tag} to b{release.build} ({release.name} {release.version}".rstrip() + "): ", ""]
    lines[0] += f"{failing} of {len(outcomes)} patches fail."
    lines += ["| patch | |", "| --- | --- |"]
    lines += [f"| {o.patch} | {'; '.join(filter(None, [o.verdict, o.note]))} |" for o in outcomes]
    lines += ["", *id_rows(read_ids(layout.pristine_dir), read_ids(release.tree), layout), ""]
    anchors = missing_anchors(layout.patches_dir / "overlay", layout.pristine_dir, release.tree)
    lines += ["| name that the overlay uses and upstream lacks | in |", "| --- | --- |"] if anchors else []
    for name, files in anchors.items():
        more = f" and {len(files) - SHOWN_FILES} more" if len(files) > SHOWN_FILES else ""
        lines.append(f"| `{name}` | {', '.join(files[:SHOWN_FILES])}{more} |")
    if not anchors:
        lines.append("Every name that the overlay takes from upstream's headers is still there.")
    return "\n".join(lines) + "\n"


def both_sides(outcomes: list[Outcome]) -> str:
    """Return every failing hunk, ours above upstream's lines."""
    parts = []
    for outcome in outcomes:
        for hunk in outcome.failed:
            parts.append(f"## {outcome.patch}: {hunk.file}\n\nours:\n\n```diff\n" + "\n".join(hunk.ours))
            parts.append(f"```\n\nupstream, line {hunk.line}:\n\n```\n" + "\n".join(hunk.theirs) + "\n```\n")
    return "\n".join(parts)


def rehearse(layout: Layout, release: Release, out: Path) -> tuple[str, list[Outcome]]:
    """Write lock, manifest and report into `out`; return the summary and how each patch fared."""
    lock, patched = Lock.load(layout.lock_path), out / "patched"
    copy_files(walk_files(release.tree), release.tree, patched)
    outcomes = rehearse_series(lock, read_series(layout.patches_dir), patched)
    text = summary(layout, lock, release, outcomes)
    write_if_different(out / "report.md", f"# Rehearsal\n\n{text}\n{both_sides(outcomes)}".encode())
    write_if_different(out / MANIFEST_NAME, manifest_text(release.tree).encode())
    if release.archive:
        new = lock_text(layout.lock_path.read_text(encoding="utf-8"), release)
        write_if_different(out / LOCK_NAME, new.encode())
        Lock.load(out / LOCK_NAME)
    return text, outcomes


def put_in_document(document: Path, text: str) -> None:
    """Replace the marked section of a document by the summary."""
    old = document.read_text(encoding="utf-8")
    if not MARKED.search(old):
        raise RequestError(f"{document}: has no section between <!-- rehearsal --> and <!-- /rehearsal -->")
    new = MARKED.sub(lambda m: f"{m.group(1)}\n{text}\n{m.group(2)}", old)
    write_if_different(document, new.encode())


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    origin = parser.add_mutually_exclusive_group(required=True)
    origin.add_argument("--archive", type=Path, metavar="FILE", help="NAME-VERSION.tar.gz of the release")
    origin.add_argument("--source", type=Path, metavar="DIR", help="its unpacked source: no lock is made")
    parser.add_argument("--build", type=int, metavar="N", help="its build number, if the version lacks it")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="new scratch folder (default: a temporary one)"
    )
    parser.add_argument("--document", type=Path, metavar="FILE", help="put the summary in its marked section")
    parser.add_argument("--write", action="store_true", help="replace lock and manifest in vendor/")
    found = parser.parse_args(words)
    if found.build is not None and found.build < 1:
        parser.error("--build is a number from 1")
    if found.source and (found.write or not found.build):
        parser.error("--source needs --build and goes without --write: the lock names an archive")
    return found


def main(words: list[str], layout: Layout) -> int:
    wish = arguments(words)
    out = wish.out or Path(tempfile.mkdtemp(prefix="lucebox-bump-"))
    try:
        if not layout.pristine_dir.is_dir():
            raise RequestError(f"{layout.pristine_dir}: not there; run `lucebox patches check` first")
        if wish.out and wish.out.exists():
            raise RequestError(f"{wish.out}: exists already")
        out.mkdir(parents=True, exist_ok=True)
        if wish.archive:
            release = unpack(wish.archive, out, wish.build)
        else:
            release = copy_source(wish.source, out, wish.build)
        text, outcomes = rehearse(layout, release, out)
        if wish.document:
            put_in_document(wish.document, text)
        if wish.write:
            for name in (LOCK_NAME, MANIFEST_NAME):
                write_if_different(layout.vendor_dir / name, (out / name).read_bytes())
    except (LuceboxError, OSError) as bad:
        print(f"error: {bad.message if isinstance(bad, LuceboxError) else bad}", file=sys.stderr)
        if not wish.out:
            shutil.rmtree(out, ignore_errors=True)
        return bad.exit_code if isinstance(bad, LuceboxError) else MissingError.exit_code
    print(text)
    print(f"report: {out / 'report.md'}", file=sys.stderr)
    return 7 if any(outcome.failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], find_layout()))
