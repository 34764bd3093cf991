"""lucebox patches: exit code, exact stdout, JSON."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from small_upstream import make_layout

from pylucebox.cli import patches as verb
from pylucebox.cli.main import main
from pylucebox.core.paths import Layout
from pylucebox.source.lock import Lock, Manifest
from pylucebox.source.pristine import ensure_pristine

HOOK = "0002-small-register.patch"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    layout = make_layout(tmp_path / "home")
    lock, manifest = Lock.load(layout.lock_path), Manifest.load(layout.manifest_path)
    ensure_pristine(layout, lock, manifest, archive=tmp_path / "home" / "small-1.0.tar.gz")
    monkeypatch.setattr(verb, "find_layout", lambda: layout)
    monkeypatch.chdir(tmp_path)
    return layout


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["patches", *words])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_list(small: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "list")
    assert status == 0
    assert out.splitlines()[5:] == [
        "0002  hook    4 lines  Inappropriate [ours]",
        f"      {HOOK}: register ours",
        "      files  src/a.c src/old.c src/new.c",
        "      tests  none",
    ]
    status, out, _ = run(capsys, "list", "--json")
    found = json.loads(out)
    assert (found["command"], found["ok"], len(found["result"]["patches"])) == ("patches list", True, 2)
    assert found["result"]["patches"][1]["changed_lines"] == 4


def test_check(small: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "check")[:2] == (0, "2 patches apply in order, 1 fix also alone\n")
    file = small.patches_dir / HOOK
    file.write_text(file.read_text().replace("-    return 1;", "-    return 3;"))
    (small.patches_dir / "0009-stray-one.patch").write_text("")
    status, out, err = run(capsys, "check")
    assert status == 4 and "error: patch series: 2 found" in err
    first, second = out.splitlines()
    assert first == "0009-stray-one.patch: not listed in series"
    assert second.startswith(f"{HOOK} does not apply: patch failed: src/a.c:1")
    status, out, _ = run(capsys, "check", "--json")
    error = json.loads(out)["error"]
    assert status == 4 and error["code"] == "integrity" and HOOK in error["message"]


def test_the_loop(small: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "checkout", "0002", "tree")
    assert (status, out) == (0, "tree\n") and f"lucebox patches refresh {HOOK} --from tree" in err
    assert run(capsys, "refresh", "0002", "--from", "tree")[:2] == (0, f"{HOOK}: as it was\n")
    Path("tree/src/a.c").write_text("int a(void) {\n    return 20;\n}\n")
    assert run(capsys, "refresh", "0002", "--from", "tree")[:2] == (0, f"{HOOK}: renewed\n")
    assert "return 20" in (small.patches_dir / HOOK).read_text()
    assert run(capsys, "refresh")[1] == f"0001-vendor-one-form.patch: as it was\n{HOOK}: as it was\n"


def test_an_installed_series_is_not_refreshed(
    small: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verb, "find_layout", lambda: replace(small, is_checkout=False))
    status, out, err = run(capsys, "refresh")
    assert (status, out) == (1, "") and "belongs to an installed package" in err


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("refresh", "--from", "tree"), 2, "--from needs the name of one patch"),
        (("refresh", "0002", "--extend"), 2, "--extend goes with --from"),
        (("refresh", "0002", "--from", "none"), 1, "none: no such folder"),
        (("checkout", "0007", "tree"), 1, "no patch of the series is called '0007'"),
    ],
)
def test_what_cannot_be_meant(
    small: Layout, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], status: int, told: str
) -> None:
    found, out, err = run(capsys, *words)
    assert (found, out) == (status, "") and told in err
