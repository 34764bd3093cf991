"""Where the source archive comes from: the user's package index as pip is set up, or a file already here."""

import ast
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pylucebox.core import downloads, processes
from pylucebox.core.downloads import Network, Progress, Remote
from pylucebox.core.errors import LuceboxError, MissingError
from pylucebox.core.receipts import sha256_file
from pylucebox.source.lock import Lock, verify_archive

# Sections of pip's configuration, weakest first. pip itself lets the environment win.
PIP_SECTIONS = ("global", "install", "download", ":env:")
SETTING = re.compile(r"(?P<section>[^.\s]+)\.(?P<name>[a-z-]+)=(?P<value>.*)")
DEFAULT_INDEX = re.compile(r"Base URL of the Python Package Index \(default (\S+?)\)")


@dataclass(frozen=True)
class PipSettings:
    """What pip would use: index URLs in order, folders of files, certificates and proxy."""

    index_urls: tuple[str, ...]
    find_links: tuple[str, ...] = ()
    network: Network = field(default_factory=Network)


def ensure_archive(lock: Lock, folder: Path, progress: Progress | None = None) -> tuple[Path, bool]:
    """Return the verified archive in `folder` and whether it had to be fetched.

    An archive that is there and matches the lock is used without touching the network. Raises MissingError
    when no origin has it, IntegrityError when one offers something else under its name.
    """
    target = folder / lock.filename
    if target.is_file() and sha256_file(target) == lock.sha256:
        return target, False
    _fetch(lock, target, read_pip_settings(), progress)
    verify_archive(lock, target)
    return target, True


def read_pip_settings() -> PipSettings:
    """Ask pip for its settings and, where no index is set, its default. Runs pip, not the package's code."""
    values = _pip_values(_pip(["config", "list"]))
    urls: list[str] = []
    if not _is_true(values.get("no-index", "")):
        urls = values.get("index-url", "").split() or _default_index()
        urls += values.get("extra-index-url", "").split()
    network = Network(values.get("cert") or None, values.get("proxy") or None)
    return PipSettings(tuple(dict.fromkeys(urls)), tuple(values.get("find-links", "").split()), network)


def _fetch(lock: Lock, target: Path, settings: PipSettings, progress: Progress | None) -> None:
    wanted = Remote(lock.filename, lock.sha256, lock.size_bytes)
    for folder in settings.find_links:
        found = Path(folder.removeprefix("file://")) / lock.filename
        if found.is_file() and sha256_file(found) == lock.sha256:
            downloads.fetch(found.absolute().as_uri(), wanted, target, settings.network, progress)
            return
    problems: list[LuceboxError] = []
    for index_url in settings.index_urls:
        try:
            url = downloads.find_url(index_url, lock.name, wanted, settings.network)
            if url:
                downloads.fetch(url, wanted, target, settings.network, progress)
                return
        except LuceboxError as bad:  # the next index may still have it
            problems.append(bad)
    if problems:
        raise problems[0]
    raise MissingError(
        f"{lock.filename}: not on the configured package index ({len(settings.index_urls)} asked)",
        hint=f"set pip's index-url to one that carries {lock.name}, or use --archive FILE",
    )


def _pip_values(lines: Sequence[str]) -> Mapping[str, str]:
    by_section: dict[str, dict[str, str]] = {}
    for line in lines:
        match = SETTING.fullmatch(line.strip())
        if match:
            section = by_section.setdefault(match["section"], {})
            section[match["name"]] = str(ast.literal_eval(match["value"]))
    return {k: v for section in PIP_SECTIONS for k, v in by_section.get(section, {}).items()}


def _default_index() -> list[str]:
    text = " ".join(" ".join(_pip(["download", "--help"])).split())
    match = DEFAULT_INDEX.search(text)
    return [match[1]] if match else []


def _pip(words: Sequence[str]) -> tuple[str, ...]:
    """Run pip, ours or the one on PATH, and return its lines. Wide columns keep URLs whole."""
    env = {"COLUMNS": "1000", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for program in ([sys.executable, "-m", "pip"], [shutil.which("pip3") or ""], [shutil.which("pip") or ""]):
        if program[0]:
            try:
                return processes.run([*program, *words], env=env, what="pip", error=MissingError).lines
            except MissingError:
                continue
    return tuple(_environment_lines()) if words[0] == "config" else ()


def _environment_lines() -> list[str]:
    """Without pip its environment variables still count."""
    names = ("INDEX_URL", "EXTRA_INDEX_URL", "CERT", "PROXY", "FIND_LINKS")
    found = {n.lower().replace("_", "-"): os.environ.get(f"PIP_{n}") for n in names}
    return [f":env:.{name}={value!r}" for name, value in found.items() if value]


def _is_true(text: str) -> bool:
    return text.lower() in ("1", "true", "yes", "on", "y", "t")
