"""Fetches one file whose hash is known from a package index, never running what it holds."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from pylucebox.core.errors import IntegrityError, LuceboxError, MissingError

Progress = Callable[[int, int], None]

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
CHUNK_BYTES = 1 << 18
RETRIES = 4
BACKOFF_S = 0.5
TIMEOUT_S = (15, 60)  # to connect, between two pieces
RETRY_STATUS = (429, 500, 502, 503, 504)
REASON = re.compile(r"\[Errno [^\]]+\] ([^\"')]+)")  # what is wrong, inside the layers of a connection error


@dataclass(frozen=True)
class Remote:
    """A file to fetch: its name, SHA-256 and size. Nothing else is accepted in its place."""

    name: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class Network:
    """How to reach an index: a CA file (None: the default) and a proxy (None: the environment's)."""

    certificates: str | None = None
    proxy: str | None = None

    def session(self) -> requests.Session:
        """Return a session that retries what may pass: refused connections and busy servers."""
        session = requests.Session()
        retry = Retry(total=RETRIES, backoff_factor=BACKOFF_S, status_forcelist=RETRY_STATUS)
        for scheme in ("http://", "https://"):
            session.mount(scheme, HTTPAdapter(max_retries=retry))
        if self.proxy:
            session.proxies = {"http": self.proxy, "https": self.proxy}
        return session

    @property
    def verify(self) -> str | bool:
        return self.certificates or True


def find_url(index_url: str, project: str, wanted: Remote, network: Network) -> str | None:
    """Return where `index_url` keeps the wanted file, or None when it does not list it.

    index_url: http, https or file URL, or a local folder, in the layout of the simple repository API.
    Raises IntegrityError when the index announces another hash for that file name, MissingError when it
    cannot be reached.
    """
    page_url = f"{_as_url(index_url).rstrip('/')}/{project}/"
    links = _local_links(page_url) if page_url.startswith("file:") else _remote_links(page_url, network)
    for name, (url, digest) in links.items():
        if name != wanted.name:
            continue
        if digest and digest != wanted.sha256:
            raise IntegrityError(
                f"the package index announces another {name}: sha256 {digest[:12]}, the lock says "
                f"{wanted.sha256[:12]}",
                hint="use --archive FILE with the file that the lock names",
            )
        return url
    return None


def fetch(url: str, wanted: Remote, target: Path, network: Network, progress: Progress | None = None) -> None:
    """Download `url` to `target`: a .partial file, the hash checked, then renamed.

    Raises MissingError when the network fails for good, IntegrityError when the content is another.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    try:
        digest = sha256()
        done = 0
        with partial.open("wb") as out:
            for piece in _pieces(url, network):
                out.write(piece)
                digest.update(piece)
                done += len(piece)
                if progress:
                    progress(done, wanted.size_bytes)
        if digest.hexdigest() != wanted.sha256:
            raise IntegrityError(
                f"{wanted.name}: the download is truncated or altered: {done} bytes, sha256 "
                f"{digest.hexdigest()[:12]}; the lock says {wanted.size_bytes} bytes, {wanted.sha256[:12]}",
                hint="try again, or use --archive FILE",
            )
        partial.replace(target)
    except OSError as bad:
        raise MissingError(f"{target}: cannot be written: {bad.strerror or bad}") from bad
    finally:
        partial.unlink(missing_ok=True)


def _pieces(url: str, network: Network) -> Any:
    """Yield the content of `url`; a connection lost midway is taken up again where it broke."""
    if url.startswith("file:"):
        yield from _file_pieces(_as_path(url))
        return
    done = 0
    session = network.session()
    for attempt in range(RETRIES + 1):
        try:
            headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={done}-"} if done else {})}
            with session.get(
                url, headers=headers, stream=True, timeout=TIMEOUT_S, verify=network.verify
            ) as answer:
                answer.raise_for_status()
                skip = done if answer.status_code != 206 else 0
                for piece in answer.iter_content(CHUNK_BYTES):
                    fresh = piece[skip:]
                    skip = max(0, skip - len(piece))
                    done += len(fresh)
                    if fresh:
                        yield fresh
            return
        except requests.HTTPError as bad:
            raise _unreachable(url, bad) from bad
        except requests.RequestException as bad:
            if attempt == RETRIES:
                raise _unreachable(url, bad) from bad


def _file_pieces(path: Path) -> Any:
    try:
        with path.open("rb") as stream:
            while piece := stream.read(CHUNK_BYTES):
                yield piece
    except OSError as bad:
        raise _unreachable(path.as_uri(), bad) from bad


def _remote_links(page_url: str, network: Network) -> dict[str, tuple[str, str]]:
    try:
        answer = network.session().get(
            page_url, headers={"Accept": ACCEPT}, timeout=TIMEOUT_S, verify=network.verify
        )
        if answer.status_code == 404:
            return {}
        answer.raise_for_status()
        if "json" in answer.headers.get("Content-Type", ""):
            return _json_links(answer.json(), answer.url)
        return _html_links(answer.text, answer.url)
    except (requests.RequestException, ValueError) as bad:
        raise _unreachable(page_url, bad) from bad


def _local_links(page_url: str) -> dict[str, tuple[str, str]]:
    folder = _as_path(page_url)
    page = folder / "index.html"
    if page.is_file():
        return _html_links(page.read_text(encoding="utf-8", errors="replace"), page_url)
    if not folder.is_dir():
        return {}
    return {p.name: (p.as_uri(), "") for p in folder.iterdir() if p.is_file()}


def _json_links(page: Mapping[str, Any], base: str) -> dict[str, tuple[str, str]]:
    return {
        str(f["filename"]): (urljoin(base, f["url"]), str(f.get("hashes", {}).get("sha256", "")))
        for f in page["files"]
    }


def _html_links(text: str, base: str) -> dict[str, tuple[str, str]]:
    links = {}
    reader = _Anchors()
    reader.feed(text)
    for href in reader.hrefs:
        url, fragment = urldefrag(urljoin(base, href))
        name = unquote(urlsplit(url).path.rsplit("/", 1)[-1])
        links[name] = (url, fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else "")
    return links


class _Anchors(HTMLParser):
    """Collects the href of every <a>."""

    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hrefs += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _as_url(index_url: str) -> str:
    return index_url if "://" in index_url else Path(index_url).absolute().as_uri()


def _as_path(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))


def _unreachable(url: str, bad: Exception) -> LuceboxError:
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"  # without user and password
    reason = REASON.findall(str(bad)) or [str(bad).removesuffix(f" for url: {url}") or type(bad).__name__]
    return MissingError(
        f"{shown}: cannot be reached: {reason[-1]}",
        hint="check the network and pip's index settings, or give the file with --archive FILE",
    )
