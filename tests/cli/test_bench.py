"""lucebox bench: exit codes, what stands on stdout and in JSON, and what is kept."""

import json
import shutil
from pathlib import Path

import pytest
from speaking_programs import (
    write_contract_program,
    write_llama_bench,
    write_llama_perplexity,
    write_model,
)

from pylucebox.cli import bench as verb
from pylucebox.cli import bench_shared
from pylucebox.cli.main import main
from pylucebox.core.paths import Layout
from pylucebox.core.receipts import BuildReceipt
from pylucebox.measure import kernels
from pylucebox.measure.report import load

FEW = ("--rounds", "2", "--noise-rounds", "0", "--warmups", "0")
SHORT = ("-p", "0", "-n", "16", "--threads", "1", *FEW)
ALONE = ("-p", "0", "-n", "16", "--threads", "1", "--rounds", "2", "--warmups", "0")


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A checkout with one finished build whose programs are scripts."""
    root = tmp_path / "repo"
    layout = Layout(
        is_checkout=True,
        vendor_dir=root / "vendor",
        patches_dir=root / "ggml_patches",
        work_dir=root / "vendor",
        build_root=root / "build",
        cache_dir=tmp_path / "cache",
    )
    for path in (layout.lock_path, layout.patches_dir / "series"):
        path.parent.mkdir(parents=True)
        path.write_text("1", encoding="utf-8")
    folder = layout.build_dir("cpu")
    write_llama_bench(folder / "bin")
    write_llama_perplexity(folder / "bin")
    BuildReceipt("ab" * 32, "cpu", 1, "0", ("cpu",), "gcc 12", folder / "bin").save(folder)
    monkeypatch.setattr(verb, "find_layout", lambda: layout)
    monkeypatch.setattr(bench_shared, "is_current", lambda layout, receipt: receipt is not None)
    monkeypatch.delenv("LUCEBOX_TARGET", raising=False)
    monkeypatch.chdir(tmp_path)
    return layout


@pytest.fixture
def models(tmp_path: Path) -> tuple[str, str]:
    """A model of 100 tokens a second and one of 90."""
    write_model(tmp_path / "quick.gguf", 100)
    write_model(tmp_path / "slow.gguf", 90)
    return "quick.gguf", "slow.gguf"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["bench", *words])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_ab_prints_a_table_and_keeps_the_result(
    layout: Layout, models: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "ab", *models, *SHORT, "--out", "results/ab.json")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "**slow against quick**"
    assert lines[4].startswith(
        "| decode 16, 1 thread | quick: 100 tok/s | slow: 90 tok/s | 0.900 | 0.900 to 0.900 |"
    )
    assert lines[4].endswith("| worse |")
    assert err == "written    results/ab.json\n"
    kept = load(Path("results/ab.json"))
    assert kept.receipts == {"cpu": "ab" * 32}
    assert kept.source.files == ("ggml_patches/series", "vendor/llama.cpp.lock.toml")
    assert kept.command.startswith("lucebox bench ab quick.gguf slow.gguf -p 0 -n 16")
    assert kept.settings["model slow"].startswith("slow.gguf")
    assert kept.comparisons[0].ratio.value == pytest.approx(0.9)


def test_gate_exits_7_and_still_keeps_the_result(
    layout: Layout, models: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "ab", *models, *SHORT, "--gate", "-2%", "--out", "ab.json")
    assert code == 7
    assert "| worse |" in out
    assert "error: gate -2.0%: 1 of 1 cases fall short" in err
    assert load(Path("ab.json")).comparisons
    assert run(capsys, "ab", *models, *SHORT, "--gate", "-15%")[0] == 0
    assert run(capsys, "ab", *reversed(models), *SHORT, "--gate", "+10%")[0] == 0


def test_json_is_one_object_whether_or_not_the_gate_holds(
    layout: Layout, models: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "ab", *models, *SHORT, "--json")
    data = json.loads(out)
    assert (code, data["command"], data["ok"]) == (0, "bench ab", True)
    assert data["result"]["comparisons"][0]["ratio"]["value"] == pytest.approx(0.9)
    code, out, _ = run(capsys, "ab", *models, *SHORT, "--json", "--gate", "0%")
    data = json.loads(out)
    assert (code, data["ok"], data["error"]["code"]) == (7, False, "gate")


def test_two_builds_need_to_be_alike(
    layout: Layout, models: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    other = layout.cache_dir / "other"
    shutil.copytree(layout.build_dir("cpu"), other)
    code, out, _ = run(capsys, "ab", "cpu", str(other), models[0], *SHORT)
    assert code == 0
    assert out.startswith("**other against cpu on quick**")
    BuildReceipt("cd" * 32, "cpu", 1, "0", ("cpu",), "clang 19", other / "bin").save(other)
    code, _, err = run(capsys, "ab", "cpu", str(other), models[0], *SHORT)
    assert (code, "compiler gcc 12 against clang 19" in err) == (1, True)
    assert run(capsys, "ab", "cpu", str(other), models[0], *SHORT, "--allow-unlike")[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("ab", "cpu", "slow.gguf"), 2, "'cpu' is no model file"),
        (("ab", "cpu", "cpu", "slow.gguf", "--build", "cpu"), 2, "exclude each other"),
        (("run", "slow.gguf", "-p", "0", "-n", "0"), 2, "nothing to measure"),
        (("run", "slow.gguf", "--rounds", "1"), 2, "1 is not in the range x>=2"),
        (("run", "slow.gguf", "--noise-rounds", "2"), 2, "No such option"),
        (("ab", "slow.gguf", "slow.gguf", "--noise-rounds", "1"), 1, "needs two rounds or more"),
        (("run", "absent.gguf"), 2, "does not exist"),
        (("ab", "slow.gguf", "slow.gguf", "--gate", "fast"), 2, "'fast' is not a change such as -2%"),
        (("kernels",), 3, "this build has no bench-lucebox-kernels"),
        (("run", "slow.gguf", "--build", "gpu"), 3, "no finished build of target 'gpu'"),
        (("report", "."), 1, "no result files"),
    ],
)
def test_mistakes_are_named(
    layout: Layout,
    models: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    code: int,
    text: str,
) -> None:
    ended, out, err = run(capsys, *words)
    assert (ended, out) == (code, "")
    assert text in err


def test_run_hands_words_on_and_remembers_them(
    layout: Layout, models: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "run", models[0], *ALONE, "--out", "run.json", "--", "--type-k", "q8_0")
    assert (code, err) == (0, "written    run.json\n")
    assert "| decode 16, 1 thread | quick | 100 tok/s | 100 to 100 | ±0.0 % | 2 |" in out
    kept = load(Path("run.json"))
    assert kept.settings["type_k"] == "q8_0"
    assert kept.settings["options"] == "--type-k q8_0"
    assert kept.command.endswith("-- --type-k q8_0")


def test_compare_and_report_read_what_run_kept(
    layout: Layout, models: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for model in models:
        assert run(capsys, "run", model, *ALONE, "--out", f"results/{Path(model).stem}.json")[0] == 0
    code, out, _ = run(capsys, "compare", "results/quick.json", "results/slow.json")
    assert code == 0
    assert "| 0.900 | 0.900 to 0.900 | not measured | 2 | worse (not interleaved) |" in out
    assert run(capsys, "compare", "results/quick.json", "results/slow.json", "--gate", "-5%")[0] == 7
    code, out, _ = run(capsys, "report", "results")
    assert (code, out.split()) == (0, ["results/table.md", "results/quick.svg", "results/slow.svg"])
    assert "STALE" not in Path("results/table.md").read_text(encoding="utf-8")
    (layout.patches_dir / "series").write_text("2", encoding="utf-8")
    assert run(capsys, "report", "results")[0] == 0
    assert Path("results/table.md").read_text(encoding="utf-8").count("STALE") == 2


def test_a_build_of_other_sources_names_none(
    layout: Layout,
    models: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_shared, "is_current", lambda layout, receipt: False)
    code, out, err = run(capsys, "run", models[0], *ALONE)
    assert code == 0
    assert "sources unknown" in out
    assert "warning: no build of the present sources was measured" in err


def test_kernels_are_driven_through_the_resident_program(
    layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = {pair[0] for pair in kernels.PAIRS}
    speeds = {name: 2e9 for pair in kernels.PAIRS for name in pair[:2]} | {f"{n}/scalar": 1e8 for n in ours}
    speeds["q8_0"] = 3e9
    write_contract_program(layout.build_dir("cpu") / "bin" / kernels.PROGRAM, speeds)
    code, out, err = run(capsys, "kernels", *FEW, "--gate", "-50%", "--out", "k.json")
    assert code == 0
    assert len(load(Path("k.json")).comparisons) == len(kernels.PAIRS) + 6
    assert "| dot k=4096 | mxfp4 (rows): 2." in out
    assert "dot k=4096: q4_0_rocmfp4_fast against mxfp4 " in err
    code, out, _ = run(capsys, "kernels", *FEW, "--only", "scalar")
    assert (code, out.count("/scalar")) == (0, 6)
    code, _, err = run(capsys, "kernels", *FEW, "--only", "8_0", "--goals")
    assert (code, "dot k=4096: q8_0_rocmfpx against q8_0 0.667, goal 1" in err) == (7, True)


def test_any_program_that_keeps_the_contract(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    write_contract_program(layout.build_dir("cpu") / "bin" / "bench-x", {"a": 1.0, "b": 2.0}, ("p", "q"))
    words = ("program", "bench-x", "--against", "a")
    code, out, _ = run(capsys, *words, "--arm", "b", *FEW, "--", "--size", "3")
    assert code == 0
    assert [line.split(" | ")[3] for line in out.splitlines()[4:6]] == ["2.000", "2.000"]
    assert "Settings: options --size 3." in out
    code, _, err = run(capsys, *words, "--arm", "c", *FEW)
    assert (code, "no case with both 'c' and 'a'; its arms: a, b" in err) == (1, True)


def test_quality_of_several_models(
    layout: Layout, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = write_model(tmp_path / "text", "words")
    for name in ("master", "good", "foreign"):
        write_model(tmp_path / f"{name}.gguf", name)
    words = ("--reference", "master.gguf", "-f", str(text), "--ctx-size", "16", "--threads", "1")
    code, out, _ = run(capsys, "quality", "good.gguf", "master.gguf", *words, "--out", "q.json")
    assert code == 0
    assert out.splitlines()[4].startswith(
        "| good | Q8_0 | 0.00 | 10.02 | 42.9612 ± 6.0572 | 0.004677 ± 0.000852 |"
    )
    kept = load(Path("q.json"))
    assert [q.name for q in kept.qualities] == ["good", "master"]
    assert kept.settings["reference"] == "master.gguf, perplexity 42.9248"
    assert kept.settings["context"] == "16 tokens"
    assert not list((layout.cache_dir / "bench").glob("base*"))
    assert run(capsys, "quality", "good.gguf", *words, "--keep-base", "base")[0] == 0
    assert Path("base").is_file()
    code, out, err = run(capsys, "quality", "foreign.gguf", *words, "--keep-base", "other")
    assert (code, out, Path("other").exists()) == (1, "", False)
    assert "inconsistent vocabulary" in err
