"""Fetching by name and hash from an index on the loopback interface, with its pages and its failures."""

import json
import threading
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from small_upstream import make_layout

from pylucebox.core import downloads, processes
from pylucebox.core.downloads import Network, Remote
from pylucebox.core.errors import IntegrityError, MissingError
from pylucebox.core.processes import Output
from pylucebox.source import origins
from pylucebox.source.lock import Lock

DATA = bytes(range(256)) * 4096
WANTED = Remote("small-1.0.tar.gz", sha256(DATA).hexdigest(), len(DATA))


class Index(ThreadingHTTPServer):
    """A package index with one file. Behaviour is set by attributes; `asked` lists what was requested."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []
        self.as_json = True
        self.announced = WANTED.sha256
        self.content = DATA
        self.break_after = 0  # bytes after which the first answer breaks off
        self.busy = 0  # number of answers that say 503 first
        self.ranges = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/simple"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        index = self.server
        assert isinstance(index, Index)
        index.asked.append(f"{self.path} {self.headers.get('Range', '')}".strip())
        if index.busy:
            index.busy -= 1
            self.send_response(503)
            self.end_headers()
        elif self.path == "/simple/small/":
            self._page(index)
        elif self.path == "/files/small-1.0.tar.gz":
            self._file(index)
        else:
            self.send_response(404)
            self.end_headers()

    def _page(self, index: Index) -> None:
        url = "../../files/small-1.0.tar.gz"
        if index.as_json:
            files = [{"filename": WANTED.name, "url": url, "hashes": {"sha256": index.announced}}]
            kind, body = "application/vnd.pypi.simple.v1+json", json.dumps({"files": files})
        else:
            kind = "text/html"
            body = (
                f'<a href="{url}#sha256={index.announced}">x</a><a>none</a><a href="../other-2.0.whl">o</a>'
            )
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body.encode())

    def _file(self, index: Index) -> None:
        start = 0
        asked = self.headers.get("Range")
        if asked and index.ranges:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(index.content) - start))
        self.end_headers()
        end = len(index.content)
        if index.break_after:
            end, index.break_after = index.break_after, 0
        self.wfile.write(index.content[start:end])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    monkeypatch.setattr(downloads, "BACKOFF_S", 0.0)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    server = Index()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def download(index: Index, target: Path, calls: list[tuple[int, int]] | None = None) -> None:
    url = downloads.find_url(index.url, "small", WANTED, Network())
    assert url
    downloads.fetch(
        url, WANTED, target, Network(), lambda *call: calls.append(call) if calls is not None else None
    )


@pytest.mark.parametrize("as_json", [True, False])
def test_a_file_is_found_by_name_and_fetched(index: Index, tmp_path: Path, as_json: bool) -> None:
    index.as_json = as_json
    calls: list[tuple[int, int]] = []
    download(index, tmp_path / "deep" / "file", calls)
    assert (tmp_path / "deep" / "file").read_bytes() == DATA
    assert calls[-1] == (len(DATA), len(DATA)) and calls == sorted(calls)
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["file"]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_connection_is_taken_up_where_it_broke(index: Index, tmp_path: Path, ranges: bool) -> None:
    index.break_after, index.ranges = 300_000, ranges
    download(index, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == DATA
    assert index.asked[-1] == f"/files/small-1.0.tar.gz bytes={downloads.CHUNK_BYTES}-"


def test_a_busy_index_is_asked_again(index: Index, tmp_path: Path) -> None:
    index.busy = 2
    download(index, tmp_path / "file")
    assert index.asked.count("/simple/small/") == 3


def test_another_announced_hash_is_an_integrity_error(index: Index) -> None:
    index.announced = "0" * 64
    with pytest.raises(IntegrityError, match="announces another small-1"):
        downloads.find_url(index.url, "small", WANTED, Network())


def test_altered_content_is_refused_and_nothing_stays(index: Index, tmp_path: Path) -> None:
    index.content = DATA[:-1] + b"x"
    with pytest.raises(IntegrityError, match="truncated or altered"):
        download(index, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_an_index_without_the_project_or_the_file_gives_none(index: Index) -> None:
    assert downloads.find_url(index.url, "other", WANTED, Network()) is None
    assert downloads.find_url(index.url, "small", Remote("small-2.0.tar.gz", "", 0), Network()) is None


def test_a_dead_index_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "BACKOFF_S", 0.0)
    with pytest.raises(
        MissingError, match=r"9/simple/small/: cannot be reached: Connection refused$"
    ) as caught:
        downloads.find_url("http://me:secret@127.0.0.1:9/simple", "small", WANTED, Network())
    assert "secret" not in caught.value.message and "127.0.0.1" in caught.value.message
    assert "--archive" in (caught.value.hint or "")


@pytest.mark.parametrize("with_page", [True, False])
def test_a_file_index_works_by_page_or_by_folder(tmp_path: Path, with_page: bool) -> None:
    folder = tmp_path / "with space" / "small"
    folder.mkdir(parents=True)
    (folder / WANTED.name).write_bytes(DATA)
    if with_page:
        (folder / "index.html").write_text(f'<a href="{WANTED.name}#sha256={WANTED.sha256}">x</a>')
    for index_url in (folder.parent.as_uri(), str(folder.parent)):
        url = downloads.find_url(index_url, "small", WANTED, Network())
        assert url and url.startswith("file://")
        downloads.fetch(url, WANTED, tmp_path / "out", Network())
        assert (tmp_path / "out").read_bytes() == DATA
    assert downloads.find_url(tmp_path.as_uri(), "small", WANTED, Network()) is None


def test_a_link_to_a_missing_local_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"gone\.tar\.gz: cannot be reached"):
        downloads.fetch((tmp_path / "gone.tar.gz").as_uri(), WANTED, tmp_path / "out", Network())


HELP = """
Package Index Options:
  -i, --index-url <url>       Base URL of the Python Package Index (default http://127.0.0.1:1/simple). This
                              should point to a repository.
"""


def fake_pip(monkeypatch: pytest.MonkeyPatch, config: str) -> list[list[str]]:
    """Replace pip by one that prints `config` and HELP; return the words it was called with."""
    calls: list[list[str]] = []

    def run(argv: list[str], **_: object) -> Output:
        calls.append(argv[-2:])
        return Output(tuple((config if argv[-1] == "list" else HELP).splitlines()))

    monkeypatch.setattr(processes, "run", run)
    return calls


def test_settings_are_pips_and_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pip(
        monkeypatch,
        "global.index-url='http://a/simple'\n:env:.index-url='http://b/simple'\n"
        "global.extra-index-url='http://c/simple\\nfile:///d http://b/simple'\n"
        "global.cert='/ca.crt'\ninstall.proxy='http://p:1'\nglobal.timeout='60'\nfreeze.no-index='true'\n",
    )
    settings = origins.read_pip_settings()
    assert settings.index_urls == ("http://b/simple", "http://c/simple", "file:///d")
    assert settings.network == Network("/ca.crt", "http://p:1")


def test_without_an_index_pips_own_default_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_pip(monkeypatch, "global.extra-index-url='file:///d'\n")
    assert origins.read_pip_settings().index_urls == ("http://127.0.0.1:1/simple", "file:///d")
    assert calls == [["config", "list"], ["download", "--help"]]


def test_no_index_leaves_the_local_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pip(
        monkeypatch, "global.no-index='1'\nglobal.index-url='http://a'\nglobal.find-links='/w file:///v'\n"
    )
    settings = origins.read_pip_settings()
    assert settings.index_urls == () and settings.find_links == ("/w", "file:///v")


def test_the_real_pip_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words of pip's own help and configuration, with nothing set but an extra index."""
    more = "http://127.0.0.1:9/an-index/with-hyphens/simple"
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{tmp_path.as_uri()} {more}")
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    default, *rest = origins.read_pip_settings().index_urls
    assert default.startswith("http") and rest == [tmp_path.as_uri(), more]


def locked(tmp_path: Path) -> tuple[Lock, bytes]:
    layout = make_layout(tmp_path / "home")
    return Lock.load(layout.lock_path), (tmp_path / "home" / "small-1.0.tar.gz").read_bytes()


def test_the_second_index_is_asked_when_the_first_fails(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, data = locked(tmp_path)
    index.announced, index.content = lock.sha256, data
    fake_pip(
        monkeypatch, f"global.index-url='http://127.0.0.1:9/simple'\nglobal.extra-index-url='{index.url}'\n"
    )
    path, fetched = origins.ensure_archive(lock, tmp_path / "archive")
    assert fetched and path.read_bytes() == data
    asked = len(index.asked)
    assert origins.ensure_archive(lock, tmp_path / "archive") == (path, False)
    assert len(index.asked) == asked
    path.write_bytes(data[:-1])  # a truncated archive is fetched again, not trusted
    assert origins.ensure_archive(lock, tmp_path / "archive") == (path, True)
    assert path.read_bytes() == data


def test_a_folder_of_find_links_needs_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, data = locked(tmp_path)
    fake_pip(monkeypatch, f"global.find-links='{tmp_path / 'home'}'\nglobal.no-index='true'\n")
    path, fetched = origins.ensure_archive(lock, tmp_path / "archive")
    assert fetched and path.read_bytes() == data


def test_no_origin_is_one_line_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, _ = locked(tmp_path)
    fake_pip(monkeypatch, f"global.index-url='{tmp_path.as_uri()}'\n")
    with pytest.raises(MissingError, match="not on the configured package index") as caught:
        origins.ensure_archive(lock, tmp_path / "archive")
    assert "--archive FILE" in (caught.value.hint or "") and caught.value.exit_code == 3
