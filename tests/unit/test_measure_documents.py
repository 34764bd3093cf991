"""tools/render_docs.py: sections between marks, pictures, the commands' page, and drift of any of them."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from tool_modules import load_tool

from pylucebox.cli.main import KNOWN_ENVIRONMENT, VERBS
from pylucebox.core.paths import PACKAGE_DIR
from pylucebox.measure.machine import Machine
from pylucebox.measure.report import Level, Result, load
from pylucebox.measure.sources import Source, hash_files

TOOL = Path(__file__).parents[2] / "tools/render_docs.py"
PAGE = "Before.\n\n<!-- result: one.json -->\nold\n<!-- /result -->\n\nAfter.\n"


@pytest.fixture
def tool() -> ModuleType:
    return load_tool("render_docs")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one result, measured on kernel.c, and a page that shows it."""
    (tmp_path / "kernel.c").write_text("1", encoding="utf-8")
    machine = Machine("Some CPU", 4, (), "Some OS 1", "6.1", None)
    level = Level("decode", "tiny", "tok/s", ((60.0, 61.0, 60.5, 60.0), (59.0, 60.0, 61.0, 60.0)))
    source = Source(("kernel.c",), hash_files(tmp_path, ("kernel.c",)))
    kept = Result("A speed", "2026-12-01", "x", machine, {"cpu": "a" * 64}, source, levels=(level,))
    kept.save(tmp_path / "docs/results/one.json")
    (tmp_path / "docs/formats.md").write_text(PAGE, encoding="utf-8")
    return tmp_path


def write_all(tool: ModuleType, root: Path) -> None:
    for path, text in tool.rendered_files(root).items():
        path.write_text(text, encoding="utf-8")


def drift(tool: ModuleType, root: Path) -> list[str]:
    files = tool.rendered_files(root)
    return [p.name for p, text in files.items() if not p.is_file() or p.read_text(encoding="utf-8") != text]


def test_section_is_replaced_and_the_rest_is_kept(tool: ModuleType, root: Path) -> None:
    assert drift(tool, root) == ["one.svg", "formats.md"]
    write_all(tool, root)
    text = (root / "docs/formats.md").read_text(encoding="utf-8")
    assert text.startswith("Before.\n\n<!-- result: one.json -->\n\n**A speed**\n")
    assert text.endswith("![A speed](results/one.svg)\n\n<!-- /result -->\n\nAfter.\n")
    assert "old" not in text
    assert drift(tool, root) == []
    write_all(tool, root)
    assert (root / "docs/formats.md").read_text(encoding="utf-8") == text


def test_readme_points_into_docs(tool: ModuleType, root: Path) -> None:
    (root / "README.md").write_text(PAGE, encoding="utf-8")
    assert "](docs/results/one.svg)" in tool.render_document(root / "README.md", root)


def test_changed_sources_are_drift_until_the_page_says_stale(tool: ModuleType, root: Path) -> None:
    write_all(tool, root)
    (root / "kernel.c").write_text("2", encoding="utf-8")
    assert drift(tool, root) == ["one.svg", "formats.md"]
    write_all(tool, root)
    assert "**STALE**" in (root / "docs/formats.md").read_text(encoding="utf-8")


def test_a_new_result_is_drift(tool: ModuleType, root: Path) -> None:
    write_all(tool, root)
    path = root / "docs/results/one.json"
    replace(load(path), date="2026-12-02").save(path)
    assert drift(tool, root) == ["one.svg", "formats.md"]


@pytest.mark.parametrize("page", [PAGE.replace("<!-- /result -->", ""), PAGE + "<!-- result: two.json -->\n"])
def test_marks_that_do_not_pair_are_refused(tool: ModuleType, root: Path, page: str) -> None:
    (root / "docs/formats.md").write_text(page, encoding="utf-8")
    with pytest.raises(ValueError, match=r"formats\.md: .* do not pair"):
        tool.rendered_files(root)


def test_a_result_that_is_not_there_is_one_line(
    tool: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "docs/formats.md").write_text(PAGE.replace("one.json", "none.json"), encoding="utf-8")
    monkeypatch.setattr(tool, "ROOT", root)
    assert tool.main([]) == 1
    missing = root / "docs/results/none.json"
    assert capsys.readouterr().err == f"{missing}: cannot be read (No such file or directory)\n"


def test_a_slip_writes_nothing(
    tool: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "ROOT", root)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert tool.main(["--chek"]) == 2 and "usage: " in capsys.readouterr().err
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_commands_page_has_every_command(tool: ModuleType) -> None:
    page = tool.commands_page()
    for verb in VERBS:
        assert f"\n### lucebox {verb}\n" in page
    assert "\n#### lucebox bench quality\n" in page
    assert "Usage: lucebox bench quality [OPTIONS] MODEL..." in page


def test_commands_page_has_every_variable_and_each_is_read(tool: ModuleType) -> None:
    code = "".join(p.read_text(encoding="utf-8") for p in PACKAGE_DIR.rglob("*.py"))
    tests = (TOOL.parents[1] / "tests/conftest.py").read_text(encoding="utf-8")
    for name in KNOWN_ENVIRONMENT:
        assert f"| `{name}` | " in tool.commands_page()
        assert f'environ.get("{name}"' in code + tests, f"nothing reads {name}"


def test_commands_page_has_every_exit_code(tool: ModuleType) -> None:
    rows = [line.split(" | ")[0] for line in tool.exit_codes().splitlines()[2:]]
    assert rows == [f"| {code}" for code in (0, 1, 2, 3, 4, 5, 6, 7, 130)]
    assert "| 7 | A gate or check fell short. |" in tool.commands_page()


def test_marks_inside_a_line_are_words(tool: ModuleType, root: Path) -> None:
    (root / "docs/formats.md").write_text(f"Write `<!-- result: X -->` there.\n\n{PAGE}", encoding="utf-8")
    assert "`<!-- result: X -->` there." in tool.render_document(root / "docs/formats.md", root)
