"""llama-bench and llama-perplexity: what is read from them and what is refused."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from speaking_programs import (
    FACTS,
    STATISTICS,
    write_llama_bench,
    write_llama_perplexity,
    write_model,
    write_program,
)

from pylucebox.core.errors import IntegrityError, MissingError, RequestError
from pylucebox.core.paths import Layout
from pylucebox.core.receipts import BuildReceipt, sha256_file
from pylucebox.measure.benchmark import Plan
from pylucebox.measure.binaries import Binaries, check_alike, find_binaries
from pylucebox.measure.llama_bench import (
    LlamaBench,
    Workload,
    measure_levels,
    measure_speed,
    parse_test,
    shared_settings,
)
from pylucebox.measure.perplexity import Base, Setup, evaluate, make_base, measure_model, parse_statistics


def side(folder: Path, name: str, speed: float, work: Workload, extra: Sequence[str] = ()) -> LlamaBench:
    model = write_model(folder / f"{name}.gguf", speed)
    return LlamaBench(name, write_llama_bench(folder), model, work, folder, tuple(extra))


def test_two_models_in_turns(tmp_path: Path) -> None:
    work = Workload(64, 16, threads=(1, 2), repetitions=3)
    a, b = side(tmp_path, "a", 100.0, work), side(tmp_path, "b", 125.0, work)
    found = measure_speed(a, b, Plan(2, 2, 1))
    assert [c.case for c in found] == [
        "prompt 64, 1 thread", "decode 16, 1 thread", "prompt 64, 2 threads", "decode 16, 2 threads",
    ]  # fmt: skip
    assert all(c.ratio.value == pytest.approx(1.25, rel=1e-6) for c in found)
    assert found[2].levels[0].value == pytest.approx(200, rel=1e-6)
    settings = shared_settings([a, b])
    assert settings["backends"] == "CPU"
    assert settings["model b"] == "b.gguf (1, 1 weights in 1 bytes)"


def test_one_model_on_its_own(tmp_path: Path) -> None:
    (level,) = measure_levels(side(tmp_path, "a", 50.0, Workload(0, 16)), Plan(3, 3, 0))
    assert (level.case, level.unit, level.value.n) == ("decode 16, 1 thread", "tok/s", 3)
    assert level.value.value == pytest.approx(50)
    assert [len(r) for r in level.samples] == [4, 4, 4]
    assert level.noise.value == pytest.approx(1)


def test_sides_with_other_settings_are_compared_only_on_request(tmp_path: Path) -> None:
    work = Workload(0, 16)
    a, b = side(tmp_path, "a", 10, work), side(tmp_path, "b", 10, work, ("--type-k", "q8_0"))
    with pytest.raises(RequestError, match="different settings: type_k f16 against q8_0"):
        measure_speed(a, b, Plan(2, 0, 0))
    assert measure_speed(a, b, Plan(2, 0, 0), allow_unlike=True)


def test_speed_is_of_all_repetitions_together() -> None:
    line = {
        **FACTS,
        "n_prompt": 0,
        "n_gen": 10,
        "n_depth": 512,
        "n_threads": 1,
        "samples_ns": [10**9, 3 * 10**9],
    }
    case, speed, _ = parse_test(json.dumps(line), 2)
    # 20 tokens in 4 seconds; the mean of the two rates would be 6.7.
    assert (case, speed) == ("decode 10 at depth 512, 1 thread", pytest.approx(5.0))


@pytest.mark.parametrize(
    "change",
    [{"samples_ns": [1]}, {"samples_ns": [0, 5]}, {"n_gen": "x"}, {"samples_ns": None}, {"backends": ...}],
)
def test_malformed_results_are_refused(change: dict[str, object]) -> None:
    line = {**FACTS, "n_prompt": 0, "n_gen": 10, "n_depth": 0, "n_threads": 1, "samples_ns": [5, 5], **change}
    text = json.dumps({k: v for k, v in line.items() if v is not ...})
    with pytest.raises(IntegrityError, match="llama-bench"):
        parse_test(text, 2)
    with pytest.raises(IntegrityError, match="llama-bench"):
        parse_test(text[:-1], 2)


def test_a_failing_bench_shows_its_last_words(tmp_path: Path) -> None:
    one = side(tmp_path, "a", 10, Workload(0, 16))
    one.model.write_text("no number", encoding="utf-8")
    with pytest.raises(RequestError, match="llama-bench failed") as failed:
        one.run()
    assert "could not convert string to float" in failed.value.log_tail[-1]


def test_statistics_are_read_strictly() -> None:
    lines = STATISTICS.splitlines()
    found = parse_statistics(lines, "m")
    assert found["Mean PPL(Q)"] == (42.961154, 6.057233)
    assert found["Mean KLD"] == (0.004677, 0.000852)
    assert found["99.0% KLD"] == (0.079782, 0.0)
    assert found["Same top p"] == (98.910, 0.181)
    with pytest.raises(IntegrityError, match="'Mean KLD' 0 times"):
        parse_statistics([line for line in lines if "Mean    KLD" not in line], "m")
    with pytest.raises(IntegrityError, match="'Same top p' 2 times"):
        parse_statistics([*lines, lines[-1]], "m")
    with pytest.raises(RequestError, match="'Mean KLD' is nan"):
        parse_statistics([line.replace("0.004677", "-nan") for line in lines], "m")


def write_base(path: Path, context: int = 16, vocabulary: int = 5, chunks: int = 20, short: int = 0) -> None:
    row = 2 * ((vocabulary + 1) // 2) + 4
    body = 4 * chunks * context + 2 * chunks * (context - 1 - context // 2) * row
    head = struct.pack("<8siii", b"_logits_", context, vocabulary, chunks)
    path.write_bytes(head + bytes(body - short))


def test_base_is_as_long_as_it_says(tmp_path: Path) -> None:
    path = tmp_path / "base"
    write_base(path)
    base = Base.read(path)
    assert (base.context_tokens, base.vocabulary, base.chunks, base.tokens) == (16, 5, 20, 140)
    write_base(path, short=1)
    with pytest.raises(IntegrityError, match="20 chunks of 16 tokens need"):
        Base.read(path)
    path.write_bytes(b"_logits_" + bytes(4))
    with pytest.raises(IntegrityError, match="no log probabilities"):
        Base.read(path)
    path.write_bytes(b"something else, longer than a header")
    with pytest.raises(IntegrityError, match="does not start like"):
        Base.read(path)
    with pytest.raises(IntegrityError, match="No such file"):
        Base.read(tmp_path / "absent")


def setup(folder: Path, chunks: int | None = None) -> Setup:
    return Setup(write_llama_perplexity(folder), 16, chunks, 1, folder)


def model(folder: Path, content: str) -> Path:
    return write_model(folder / f"{content}.gguf", content)


def test_models_are_held_against_the_master(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    models = {"good": model(tmp_path, "good")}
    path = tmp_path / "base"
    base, (found,) = evaluate(
        setup(tmp_path),
        model(tmp_path, "master"),
        tmp_path / "t",
        models,
        path,
        lambda *step: seen.append(step),
    )
    assert (base.path, base.perplexity, base.tokens) == (path, 42.9248, 140)
    assert (found.name, found.type_name, found.bits_per_weight, found.size_bytes) == (
        "good",
        "Q8_0",
        10.02,
        4,
    )
    assert (found.kld_mean, found.kld_p99, found.same_top) == (0.004677, 0.079782, pytest.approx(0.9891))
    assert (found.tokens, found.size_bytes) == (140, 4)
    assert seen == [(1, 2)]
    assert path.is_file()


def test_a_failure_leaves_no_base(tmp_path: Path) -> None:
    models = {"x": model(tmp_path, "foreign")}
    with pytest.raises(RequestError, match="says 'inconsistent vocabulary'"):
        evaluate(setup(tmp_path), model(tmp_path, "master"), tmp_path / "t", models, tmp_path / "base")
    assert not list(tmp_path.glob("base*"))


@pytest.mark.parametrize(
    ("master", "chunks", "words"),
    [
        ("short", None, "shorter than two chunks of 16 tokens"),
        ("good", 14, "98 positions count; at least 100"),
        ("broken", None, "gave no perplexity"),
    ],
)
def test_a_useless_master_is_refused(tmp_path: Path, master: str, chunks: int | None, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        make_base(setup(tmp_path, chunks), model(tmp_path, master), tmp_path / "t", tmp_path / "base")


def test_a_model_without_information_lines(tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    quiet = write_program(tmp_path / "quiet", f"print('''{STATISTICS}''')\n")
    found = measure_model(
        Setup(quiet, 16, None, 1, tmp_path), Base.read(tmp_path / "base"), model(tmp_path, "m"), "m"
    )
    assert (found.type_name, found.bits_per_weight) == ("", None)


def receipt(folder: Path, **fields: object) -> BuildReceipt:
    known = {
        "id": "f" * 64, "target": "cpu", "upstream_build": 1, "series_sha256": "0", "backends": ("cpu",),
        "compiler": "gcc 12", "bin_dir": folder / "bin", **fields,
    }  # fmt: skip
    return BuildReceipt(**known)  # type: ignore[arg-type]


def test_builds_are_found_by_name_or_folder(tmp_path: Path) -> None:
    layout = Layout(True, tmp_path, tmp_path, tmp_path, tmp_path / "build", tmp_path)
    with pytest.raises(MissingError, match="nothing is built yet"):
        find_binaries(layout, None)
    folder = layout.build_dir("cpu")
    tool = write_llama_bench(folder / "bin")
    receipt(folder).save(folder)
    for where in (None, "cpu", str(folder), str(folder / "bin")):
        found = find_binaries(layout, where)
        assert (found.name, found.program("llama-bench")) == ("cpu", tool.resolve())
        assert found.identity("llama-bench") == "f" * 64
    with pytest.raises(MissingError, match="this build has no llama-cli"):
        found.program("llama-cli")
    (folder / "receipt.json").unlink()
    identity = find_binaries(layout, str(folder)).identity("llama-bench")
    assert identity == f"none, llama-bench sha256 {sha256_file(tool)}"


def test_unlike_builds_are_refused(tmp_path: Path) -> None:
    one = Binaries("one", tmp_path, receipt(tmp_path))
    check_alike(one, Binaries("two", tmp_path, receipt(tmp_path, id="e" * 64)))
    with pytest.raises(RequestError, match="compiler gcc 12 against clang"):
        check_alike(one, Binaries("two", tmp_path, receipt(tmp_path, compiler="clang")))
    with pytest.raises(RequestError, match="two without a receipt"):
        check_alike(one, Binaries("two", tmp_path, None))
