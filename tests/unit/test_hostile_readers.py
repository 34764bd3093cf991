"""A sample of the hostile files and of the fuzzing, and every fault that they have found in the readers."""

import os
from itertools import islice
from pathlib import Path

import pytest
from fuzz.targets import TARGETS, check, mutations, seeds
from hostile import gguf_file as g
from hostile.checkpoint_cases import file_cases
from hostile.gguf_cases import SIZES, Case, all_cases, base_model

from pylucebox.core.errors import IntegrityError, LuceboxError, RequestError, one_line
from pylucebox.formats.gguf_reader import read_header
from pylucebox.formats.inspect import inspect
from pylucebox.formats.memory_plan import predict
from pylucebox.formats.presets import find_file_type
from pylucebox.formats.quantize import Wish, plan_quantization
from pylucebox.formats.safetensors_reader import read_safetensors_header
from pylucebox.formats.shards import find_shards
from pylucebox.measure import report
from pylucebox.measure.programs import parse_record
from pylucebox.source.lock import Lock
from pylucebox.source.series import Patch, series_names

STEP = 149  # no divisor of how many values a field is tried with


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return base_model(tmp_path_factory.mktemp("base"))


def refusal(path: Path, case: Case) -> str | None:
    """Read one file as `run` does; the message of the error, None when nothing is wrong with the header."""
    path.write_bytes(case.make())
    try:
        predict(inspect(path), context_tokens=4096)
    except RequestError as refused:
        assert refused.message.startswith(str(path)) and refused.hint and "\n" not in refused.message
        return refused.message
    return None


def test_a_sample_of_gguf_files(base: bytes, tmp_path: Path) -> None:
    for case in all_cases(base)[::STEP]:
        said = refusal(tmp_path / "x.gguf", case)
        assert said is None or not case.says or any(word in said for word in case.says), case.name


@pytest.mark.parametrize("group", ["repeats", "places", "values", "truncated in the data", "types"])
def test_groups_that_no_reader_may_take(base: bytes, tmp_path: Path, group: str) -> None:
    cases = [case for case in all_cases(base) if case.group == group]
    assert len(cases) > 4
    for case in cases[:: 1 + len(cases) // 60]:
        assert refusal(tmp_path / "x.gguf", case), case.name


def test_the_sound_model_is_taken(base: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(base)
    assert inspect(path).layers == 4
    assert g.join(g.split(base, SIZES)) == base


def test_every_safetensors_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for case in file_cases():
        path.write_bytes(case.data)
        with pytest.raises(RequestError) as refused:
            read_safetensors_header(path)
        said = refused.value.message
        assert said.startswith(str(path)) and refused.value.hint and "\n" not in said, case.name
        assert not case.says or any(word in said for word in case.says), case.name


@pytest.mark.parametrize("name", TARGETS)
def test_corpus_and_some_mutations(name: str) -> None:
    assert seeds(name)
    for data in (*seeds(name), *islice(mutations(name, 7), 3000)):
        check(name, data)


KEYS = {
    "deepseek4.context_length": g.string("x"),
    "deepseek4.attention.head_count": g.array(g.U32, [2, 2]),
    "deepseek4.attention.compress_ratios": g.scalar(g.U32, 4),
    "deepseek4.rope.freq_base": g.scalar(g.F32, float("nan")),
    "general.architecture": g.array(g.U32, [1]),
    "tokenizer.ggml.tokens": g.scalar(g.U32, 1),
    "lucebox.default_thinking": g.string("yes"),
}


@pytest.mark.parametrize("key", KEYS)
def test_keys_of_another_type_are_named(base: bytes, tmp_path: Path, key: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(g.join(g.split(base, SIZES).with_key(key, KEYS[key])))
    with pytest.raises(RequestError, match=key):
        inspect(path)


def test_quantize_checks_keys_before_a_program_runs(base: bytes, tmp_path: Path) -> None:
    path, key = tmp_path / "x.gguf", "deepseek4.block_count"
    path.write_bytes(g.join(g.split(base, SIZES).with_key(key, g.scalar(g.U32, 0))))
    wish = Wish(path, tmp_path / "out.gguf", find_file_type("q8_0"))
    with pytest.raises(RequestError, match=key):
        plan_quantization(tmp_path / "no-program", wish)
    assert [p.name for p in tmp_path.iterdir()] == ["x.gguf"]


def test_names_from_files_do_not_steer_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(g.join(g.File({"a\n\x1b[2J": b"\xff\0\0\0"}, ())))
    with pytest.raises(RequestError) as refused:
        read_header(path)
    assert "a\\n\\x1b[2J" in refused.value.message and refused.value.message.isprintable()
    assert len(one_line("x" * 10**6)) < 2100
    assert one_line("\udcff").encode() == b"\\udcff"


@pytest.mark.parametrize("read", [read_header, read_safetensors_header])
def test_a_pipe_is_no_file(tmp_path: Path, read: object) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RequestError, match="no ordinary file"):
        read(tmp_path / "pipe")  # type: ignore[operator]


@pytest.mark.parametrize("name", ["m-00001-of-00000.gguf", "m-00001-of-99999.gguf", "m-00001-of-09999.gguf"])
def test_shard_counts_without_end(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(RequestError) as refused:
        find_shards(tmp_path / name)
    assert len(refused.value.message) < 1000


@pytest.mark.parametrize("change", ["build = inf", "build = true", "build = -7", "build = " + "[" * 9000])
def test_locks_with_numbers_that_are_none(layout: object, tmp_path: Path, change: str) -> None:
    path = tmp_path / "lock.toml"
    path.write_text(seeds("lock")[1].decode().replace("build = 7", change))
    with pytest.raises(IntegrityError, match="not a valid lock"):
        Lock.load(path)


def test_series_and_patches_stay_inside_their_folder(tmp_path: Path) -> None:
    (tmp_path / "series").write_text("../0001-a-b.patch\n")
    with pytest.raises(IntegrityError, match="is not the name of a patch"):
        series_names(tmp_path)
    (tmp_path / "series").write_bytes(b"\xff\n")
    with pytest.raises(IntegrityError, match="cannot be read"):
        series_names(tmp_path)
    patch = tmp_path / "0001-a-b.patch"
    patch.write_text("--- a/x\n+++ b/../../x\n@@ -1 +1 @@\n-a\n+b\n")
    with pytest.raises(IntegrityError, match="is not a plain relative path"):
        Patch.load(patch)
    patch.write_text("--- a/x\n+++ b/x\n@@ -1," + "9" * 5000 + " +1 @@\n")
    assert Patch.load(patch).changed_lines == 0


@pytest.mark.parametrize("value", ["1" + "0" * 400, "true", "NaN", "-1", "[" * 9000])
def test_records_of_programs(value: str) -> None:
    with pytest.raises(LuceboxError):
        parse_record(f'{{"case": "c", "arm": "a", "unit": "tokens/s", "value": {value}}}', "program")


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "{}", '{"schema": 1}', "\xff"])
def test_result_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(IntegrityError) as refused:
        report.load(path)
    assert refused.value.hint
