"""tools/check_warnings.py: which warnings are ours, in overlay files and in patched ones."""

import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from conftest import lacking
from tool_modules import load_tool

from pylucebox.core.errors import MissingError
from pylucebox.core.paths import Layout

PATCH = """\
Description: a hook
Origin: vendor
---
--- a/src/core.c
+++ b/src/core.c
@@ -1,2 +1,3 @@
 int core(int unused) { return 1; }
+
 int more(void) { return 2; }
"""
CLEAN = "int core(int unused) { return 1; }\nint more(void) { return 2; }\n"


@pytest.fixture
def tool() -> ModuleType:
    if shutil.which("cc") is None:
        lacking("native", "a C compiler")
    return load_tool("check_warnings")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A pristine file that warns once, patched without another warning, and a clean overlay file."""
    patches, work = tmp_path / "patches", tmp_path / "work"
    for folder in (
        patches / "overlay/src",
        work / "pristine/src",
        work / "llama.cpp/src",
        tmp_path / "build/cpu",
    ):
        folder.mkdir(parents=True)
    (patches / "series").write_text("0001-a-hook.patch\n")
    (patches / "0001-a-hook.patch").write_text(PATCH)
    (work / "pristine/src/core.c").write_text(CLEAN)
    (work / "llama.cpp/src/core.c").write_text(CLEAN.replace("\n", "\n\n", 1))
    made = Layout(True, tmp_path, patches, work, tmp_path / "build", tmp_path / "cache")
    overlay(made, "ours.c", "int ours(void) { return 3; }\n")
    names = ("core.c", "ours.c")
    sources = [str(work / "llama.cpp/src" / name) for name in names]
    commands = [
        {
            "file": s,
            "directory": str(tmp_path),
            "command": f"cc -I{work}/llama.cpp/src -Wno-unused-parameter -o x -c {s}",
        }
        for s in sources
    ]
    (tmp_path / "build/cpu/compile_commands.json").write_text(json.dumps(commands))
    return made


def overlay(layout: Layout, name: str, text: str) -> None:
    path = layout.patches_dir / "overlay/src" / name
    path.write_text(text)
    link = layout.prepared_dir / "src" / name
    link.unlink(missing_ok=True)
    link.symlink_to(path)


def patched(layout: Layout, text: str) -> None:
    (layout.prepared_dir / "src/core.c").write_text(text)


def test_upstream_may_warn_as_before(tool: ModuleType, layout: Layout) -> None:
    faults, calls = tool.check(layout)
    assert not faults
    assert calls == 3  # both of ours, and core.c as upstream has it


def test_a_second_warning_of_the_same_words_is_ours(tool: ModuleType, layout: Layout) -> None:
    patched(layout, CLEAN + "int other(int unused) { return 4; }\n")
    faults, _ = tool.check(layout)
    assert faults[0].startswith("src/core.c:3: unused parameter")
    assert len(faults) == 1


def test_a_case_that_a_switch_lacks(tool: ModuleType, layout: Layout) -> None:
    patched(
        layout, CLEAN + "enum e { A, B };\nint f(enum e x) { switch (x) { case A: return 1; } return 0; }\n"
    )
    faults, _ = tool.check(layout)
    assert len(faults) == 1
    assert "src/core.c:4" in faults[0] and "-Wswitch" in faults[0]


def test_an_overlay_file_may_not_warn(tool: ModuleType, layout: Layout) -> None:
    overlay(layout, "ours.c", "int ours(int unused) { return 3; }\n")
    faults, _ = tool.check(layout)
    assert len(faults) == 1 and faults[0].startswith("src/ours.c:1: unused parameter")


def test_overlay_files_of_other_builds_are_compiled_too(tool: ModuleType, layout: Layout) -> None:
    overlay(layout, "device.c", "int device(int unused) { return 3; }\n")
    overlay(layout, "alone.h", "#pragma once\nstatic inline int alone(int unused) { return 3; }\n")
    faults, _ = tool.check(layout)
    assert sorted(fault.partition(": ")[0] for fault in faults) == ["src/alone.h:2", "src/device.c:1"]


def test_a_file_that_does_not_compile(tool: ModuleType, layout: Layout) -> None:
    overlay(layout, "ours.c", '#include "gone.h"\n')
    faults, _ = tool.check(layout)
    assert any("src/ours.c:1: gone.h: No such file" in fault for fault in faults)


def test_without_a_build(tool: ModuleType, layout: Layout) -> None:
    shutil.rmtree(layout.build_dir("cpu"))
    with pytest.raises(MissingError, match=r"compile_commands\.json: cannot be read"):
        tool.check(layout)
