"""Moving to another upstream release, on a made-up upstream of a few files."""

import shutil
from pathlib import Path

import pytest
from small_upstream import GUARDED, PLAIN, make_archive, make_folder, make_layout
from tool_modules import load_tool

from pylucebox.core.errors import RequestError
from pylucebox.core.paths import LOCK_NAME, MANIFEST_NAME, Layout
from pylucebox.source.bump import closest_place, enum_values, missing_anchors, our_ids, read_ids
from pylucebox.source.lock import Lock, Manifest

bump = load_tool("bump_upstream")

GGML = """enum ggml_type {
    GGML_TYPE_F32 = 0, // plain
    // GGML_TYPE_GONE = 7,
    GGML_TYPE_Q4 = 2,
    GGML_TYPE_Q5,
    GGML_TYPE_COUNT = 4,
};
enum ggml_op { GGML_OP_NONE = 0, GGML_OP_ADD, GGML_OP_COUNT, };
enum ggml_ftype { GGML_FTYPE_UNKNOWN = -1, GGML_FTYPE_MOSTLY_Q4 = 2 };
"""
RPC = "".join(
    f"#define RPC_PROTO_{part}_VERSION    {n}\n" for part, n in (("MAJOR", 8), ("MINOR", 1), ("PATCH", 0))
)
OURS = """#define ROCMFPX_TYPES(X) \\
    X(100, A, a, "a", 18) \\
    X(103, B, b, "b", 17)
// clang-format on
#define ROCMFPX_FTYPES(X) \\
    X(110, A, A)
// clang-format on
#define OTHER(X) \\
    X(7, A, A)
"""
UPSTREAM = {
    "CMakeLists.txt": "project(small)\nadd_library(small-base src/a.c)\n",
    "ggml/include/ggml.h": GGML,
    "ggml/include/ggml-rpc.h": RPC,
    "include/llama.h": "enum llama_ftype { LLAMA_FTYPE_MOSTLY_Q4 = 3, LLAMA_FTYPE_GUESSED = 1024 };\n",
    "src/a.c": "int a(void) {\n    return 1;\n}\n",
    "src/a.h": "int helper_of_a(void);\nint other_helper(void);\n",
    "src/old.c": "int old;\n",
    "vendor/call.h": GUARDED,
}
CHANGED_A = "int before(void) {\n    return 0;\n}\n\nint a(void) {\n    return one();\n}\n"
DOCUMENT = "# Page\n\n<!-- rehearsal -->\nold\n<!-- /rehearsal -->\n\nend\n"


@pytest.fixture
def small(tmp_path: Path) -> Layout:
    """A layout whose pristine tree is UPSTREAM, with an overlay that uses src/a.h."""
    layout = make_layout(tmp_path / "home")
    make_folder(layout.pristine_dir, UPSTREAM)
    overlay = {
        "ggml/include/ggml-rocmfpx-types.h": OURS,
        "src/ours.c": "int x = helper_of_a();\n",
        "lucebox/ours.cmake": "target_sources(small-base PRIVATE ours.c)\n",
    }
    make_folder(layout.patches_dir / "overlay", overlay)
    return layout


def rehearse(small: Layout, tmp_path: Path, changed: dict[str, str], *words: str) -> tuple[int, str, Path]:
    """Rehearse against UPSTREAM with files changed ("" removes one); return exit code, report, folder."""
    files = {name: text for name, text in {**UPSTREAM, **changed}.items() if text}
    archive, out = tmp_path / "other-pack-2026.4000.tar.gz", tmp_path / "out"
    make_archive(archive, files)
    status = bump.main(["--archive", str(archive), "--out", str(out), *words], small)
    report = out / "report.md"
    return status, report.read_text() if report.is_file() else "", out


def vendor_bytes(layout: Layout) -> tuple[bytes, bytes]:
    return layout.lock_path.read_bytes(), layout.manifest_path.read_bytes()


def test_the_same_source_breaks_nothing(small: Layout, tmp_path: Path) -> None:
    before = vendor_bytes(small)
    status, report, out = rehearse(small, tmp_path, {})
    assert status == 0 and "0 of 2 patches fail." in report
    assert "Every name that the overlay takes" in report
    assert "| GGML_TYPE_COUNT | 4 | 4 | 100 to 103 | free |" in report
    assert "| last file type | 3 | 3 | 110 to 110 | free |" in report
    assert "| GGML_OP_COUNT | 2 | 2 | - | as it was |" in report
    assert vendor_bytes(small) == before
    lock = Lock.load(out / LOCK_NAME)
    assert (lock.build, lock.tag, lock.name, lock.version) == (4000, "b4000", "other-pack", "2026.4000")
    assert lock.root == "thirdparty/small" and lock.deviations == Lock.load(small.lock_path).deviations
    assert set(Manifest.load(out / MANIFEST_NAME).files) == set(UPSTREAM)


def test_a_failing_hunk_is_shown_with_upstreams_lines(small: Layout, tmp_path: Path) -> None:
    status, report, _ = rehearse(small, tmp_path, {"src/a.c": CHANGED_A})
    assert status == 7 and "1 of 2 patches fail." in report
    assert "| 0002-small-register.patch | fails: 1 hunk in 1 file |" in report
    ours, theirs = report.split("## 0002-small-register.patch: src/a.c")[1].split("upstream, line ")
    assert "-    return 1;\n+    return 10;" in ours
    assert theirs.startswith("3:\n") and "    return one();" in theirs


def test_what_fits_of_a_failing_patch_is_applied(small: Layout, tmp_path: Path) -> None:
    _, _, out = rehearse(small, tmp_path, {"src/a.c": CHANGED_A})
    assert (out / "patched/src/new.c").read_text() == "int fresh;\n"
    assert not (out / "patched/src/old.c").exists() and not list(out.rglob("*.rej"))


def test_a_file_that_is_gone_is_said_so(small: Layout, tmp_path: Path) -> None:
    status, report, _ = rehearse(small, tmp_path, {"src/a.c": ""})
    assert status == 7 and "## 0002-small-register.patch: src/a.c" in report
    assert "(the file is gone)" in report


@pytest.mark.parametrize(
    ("form", "told"),
    [
        (PLAIN, "applies; vendor/call.h has its final form already |"),
        (GUARDED + "// more\n", "applies; vendor/call.h: the lock's result must change |"),
        ("int call(int n);\n", "fails: 1 hunk in 1 file |"),
    ],
)
def test_another_form_of_a_deviation(small: Layout, tmp_path: Path, form: str, told: str) -> None:
    report = rehearse(small, tmp_path, {"vendor/call.h": form})[1]
    assert f"| 0001-vendor-one-form.patch | {told}" in report


def test_names_that_are_gone_are_told_with_their_users(small: Layout, tmp_path: Path) -> None:
    report = rehearse(small, tmp_path, {"src/a.h": "int helper_with_new_name(void);\n"})[1]
    assert "| `helper_of_a` | src/ours.c |" in report and "other_helper" not in report


def test_cmake_targets_that_are_gone_are_told(small: Layout, tmp_path: Path) -> None:
    report = rehearse(small, tmp_path, {"CMakeLists.txt": "add_library(small-core src/a.c)\n"})[1]
    assert "| `small-base` | lucebox/ours.cmake |" in report


def test_an_overlay_file_that_upstream_has_now(small: Layout, tmp_path: Path) -> None:
    report = rehearse(small, tmp_path, {"src/ours.c": "int theirs;\n"})[1]
    assert "| `(upstream has it)` | src/ours.c |" in report


def test_ids_that_ran_into_ours(small: Layout, tmp_path: Path) -> None:
    more = GGML.replace("GGML_TYPE_COUNT = 4", "GGML_TYPE_NEW = 103,\n    GGML_TYPE_COUNT = 104")
    changed = {
        "ggml/include/ggml.h": more.replace("GGML_OP_ADD,", "GGML_OP_ADD, GGML_OP_SUB,"),
        "ggml/include/ggml-rpc.h": RPC.replace("8", "9"),
        "include/llama.h": UPSTREAM["include/llama.h"].replace("= 3", "= 110"),
    }
    report = rehearse(small, tmp_path, changed)[1]
    assert "| GGML_TYPE_COUNT | 4 | 104 | 100 to 103 | taken: [103] |" in report
    assert "| last file type | 3 | 110 | 110 to 110 | taken: [110] |" in report
    assert "| GGML_OP_COUNT | 2 | 3 | - | the assertion of our patch must change |" in report
    assert "| RPC version | 8.1.0 | 9.1.0 | - | ours must change too |" in report


def test_only_write_changes_vendor_and_only_lock_and_manifest(small: Layout, tmp_path: Path) -> None:
    status, _, out = rehearse(small, tmp_path, {"src/a.c": CHANGED_A}, "--write")
    assert status == 7
    assert vendor_bytes(small) == ((out / LOCK_NAME).read_bytes(), (out / MANIFEST_NAME).read_bytes())
    assert Lock.load(small.lock_path).build == 4000
    assert (small.pristine_dir / "src/a.c").read_text() == UPSTREAM["src/a.c"]


def test_a_source_folder_serves_without_a_lock(small: Layout, tmp_path: Path) -> None:
    source = make_folder(tmp_path / "source", {**UPSTREAM, "docs/x.md": "not built\n"})
    out = tmp_path / "out"
    assert bump.main(["--source", str(source), "--build", "9", "--out", str(out)], small) == 0
    assert not (out / LOCK_NAME).exists() and "x.md" not in (out / MANIFEST_NAME).read_text()
    for wrong in (["--source", str(source)], ["--source", str(source), "--build", "9", "--write"], []):
        with pytest.raises(SystemExit):
            bump.main(wrong, small)


def test_the_summary_goes_into_the_marked_section(small: Layout, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(DOCUMENT)
    rehearse(small, tmp_path, {}, "--document", str(page))
    text = page.read_text()
    assert text.startswith("# Page\n\n<!-- rehearsal -->\n\nFrom b7 to b4000 (other-pack 2026.4000)")
    assert text.endswith("<!-- /rehearsal -->\n\nend\n") and "\nold\n" not in text


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("plain.tar.gz", "is not called NAME-VERSION.tar.gz"),
        ("small-1.0.tar.gz", "holds no build number"),
        ("empty-5000.tar.gz", "holds no ggml/include/ggml.h"),
        ("broken-5000.tar.gz", "not a readable archive"),
    ],
)
def test_archives_that_cannot_be_meant(
    small: Layout, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, told: str
) -> None:
    before = vendor_bytes(small)
    make_archive(tmp_path / name, {} if name.startswith("empty") else UPSTREAM)
    if name.startswith("broken"):
        (tmp_path / name).write_bytes(b"no archive")
    assert bump.main(["--archive", str(tmp_path / name), "--write"], small) == 1
    assert told in capsys.readouterr().err and vendor_bytes(small) == before


def test_names_that_leave_the_root_are_passed_over(small: Layout, tmp_path: Path) -> None:
    rehearse(small, tmp_path, {"src/../../../escape.c": "outside\n"})
    assert not list(tmp_path.rglob("escape.c"))


def test_enums_are_read_as_c_does() -> None:
    assert enum_values("enum e { A, B = 0x10, C, /* D, */ E = C, F, G = A | B, H, };", "e") == {
        "A": 0, "B": 16, "C": 17, "E": 17, "F": 18
    }  # fmt: skip
    assert enum_values("int x;", "e") == {}


def test_the_closest_place_follows_rare_lines() -> None:
    lines = ["{", "}", "x = 1;", "}", "{", "y = 2;", "z = 3;", "}"]
    assert closest_place(["{", "y = 2;", "gone;", "}"], lines, 0) == 4
    assert closest_place(["nothing", "like it"], lines, 3) == 3
    assert closest_place(["x = 1;"], ["x = 1;", "a", "b", "x = 1;"], 3) == 3


def test_the_committed_overlay_and_source_are_read(layout: Layout) -> None:
    types, file_types = our_ids(layout.patches_dir / "overlay")
    assert types == (100, 101, 102, 103, 104, 107)
    assert file_types == (*range(100, 107), 110, 111, 112, 118, 119)
    if layout.pristine_dir.is_dir():
        ids = read_ids(layout.pristine_dir)
        assert max(ids.types) + 1 == ids.type_count and not set(ids.types) & set(types)


def test_anchors_of_a_source_are_all_in_itself(small: Layout) -> None:
    overlay = small.patches_dir / "overlay"
    assert missing_anchors(overlay, small.pristine_dir, small.pristine_dir) == {}


def test_a_lock_without_a_line_to_change_is_refused(small: Layout, tmp_path: Path) -> None:
    archive = tmp_path / "small-5000.tar.gz"
    shutil.copy(tmp_path / "home" / "small-1.0.tar.gz", archive)
    release = bump.Release(tmp_path, 5000, "n", "1", "r", archive)
    with pytest.raises(RequestError, match="has no line 'root ='"):
        bump.lock_text(small.lock_path.read_text().replace("root = ", "roots = "), release)


@pytest.mark.parametrize("words", [("--out", "file/out"), ("--document", "no/page.md")])
def test_what_the_system_refuses_is_one_line(
    small: Layout,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    make_archive(tmp_path / "other-pack-2026.4000.tar.gz", UPSTREAM)
    assert bump.main(["--archive", "other-pack-2026.4000.tar.gz", *words], small) == 3
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and words[1] in err and err.count("\n") == 1
    with pytest.raises(SystemExit):
        bump.main(["--archive", "other-pack-2026.4000.tar.gz", "--build", "-5"], small)
