"""Finding models and drafters, and whether they fit, on headers written here."""

from dataclasses import replace
from pathlib import Path

import pytest

from pylucebox.core.errors import MissingError, RequestError
from pylucebox.formats.inspect import DsparkInfo, ModelInfo, TypeShare
from pylucebox.formats.shards import find_shards
from pylucebox.runtime.models import (
    Speculation,
    choose_speculation,
    embedded_model,
    find_drafter,
    find_model,
    inspect_model,
    stored_models,
)

DSPARK = DsparkInfo(5, (6, 7, 8), 64, True, 4048)
MODEL = ModelInfo(
    path=Path("m.gguf"),
    architecture="deepseek4",
    name="m",
    file_bytes=10,
    tensor_bytes=8,
    tensors=2,
    parameters=4,
    types={"F32": TypeShare(2, 8)},
    context_tokens=64,
    layers=8,
    hidden_size=256,
    vocab_size=4096,
    has_tokenizer=True,
    has_chat_template=True,
    default_thinking=None,
    recipe=None,
    dspark=None,
    keys={},
)
DRAFTER = replace(MODEL, path=Path("d.gguf"), architecture="dflash", layers=3, dspark=DSPARK)
MISFIT = replace(DRAFTER, vocab_size=129280)


def choose(
    wish: str, model: ModelInfo, drafter: ModelInfo | None, named: bool = False, most: int | None = None
):
    return choose_speculation(wish, model, drafter, named=named, draft_tokens=most)


def touch(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


@pytest.mark.parametrize("wish", ["auto", "on"])
def test_a_fitting_drafter_is_used_in_full(wish: str) -> None:
    assert choose(wish, MODEL, DRAFTER) == Speculation(DRAFTER, 5, "the drafter fits the model")
    assert choose(wish, MODEL, DRAFTER, named=True, most=2).draft_tokens == 2


def test_speculation_off() -> None:
    assert choose("off", MODEL, DRAFTER, named=True) == Speculation(None, 0, "--spec off")


def test_without_a_drafter() -> None:
    assert choose("auto", MODEL, None) == Speculation(None, 0, "no drafter beside the model")
    with pytest.raises(RequestError, match="--spec on, but no drafter"):
        choose("on", MODEL, None)
    with pytest.raises(RequestError, match="--draft-max 2, but no drafter"):
        choose("auto", MODEL, None, most=2)


def test_a_found_drafter_that_does_not_fit_is_a_reason_and_a_named_one_an_error() -> None:
    found = choose("auto", MODEL, MISFIT)
    assert found.drafter is None and "129280" in found.why
    with pytest.raises(RequestError, match=r"d\.gguf: cannot draft for m\.gguf: vocabulary"):
        choose("auto", MODEL, MISFIT, named=True)
    with pytest.raises(RequestError, match="--spec on, but vocabulary"):
        choose("on", MODEL, MISFIT)


def test_a_model_of_another_kind_is_served_without_speculation() -> None:
    found = choose("auto", replace(MODEL, architecture="llama"), DRAFTER)
    assert found.drafter is None and "llama" in found.why


def test_more_drafts_than_the_block_are_refused() -> None:
    with pytest.raises(RequestError, match=r"--draft-max 6: d\.gguf drafts at most 5 tokens"):
        choose("auto", MODEL, DRAFTER, most=6)


def test_shards_are_taken_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "m-00001-of-00002.gguf", "m-00002-of-00002.gguf")
    parts = {"m-00001-of-00002": MODEL, "m-00002-of-00002": replace(MODEL, types={"Q8_0": TypeShare(3, 6)})}
    monkeypatch.setattr("pylucebox.runtime.models.inspect", lambda path: parts[path.stem])
    whole = inspect_model(tmp_path / "m-00001-of-00002.gguf")
    assert whole.types == {"F32": TypeShare(2, 8), "Q8_0": TypeShare(3, 6)}
    assert (whole.file_bytes, whole.tensor_bytes, whole.tensors, whole.parameters) == (20, 16, 4, 8)


@pytest.mark.parametrize(
    ("beside", "found"),
    [
        (("m-dspark.gguf", "dspark-m.gguf", "x-dspark.gguf"), "m-dspark.gguf"),
        (("dspark-m.gguf", "x-dspark.gguf"), "dspark-m.gguf"),
        (("x-dspark-q8.gguf",), "x-dspark-q8.gguf"),
        (("x-dspark.gguf", "y-dspark.gguf"), None),
        (("x.gguf",), None),
    ],
)
def test_drafter_beside_the_model(tmp_path: Path, beside: tuple[str, ...], found: str | None) -> None:
    touch(tmp_path, "m.gguf", *beside)
    path = find_drafter(tmp_path / "m.gguf")
    assert (path.name if path else None) == found


def test_a_sharded_model_names_its_drafter_without_the_shard_number(tmp_path: Path) -> None:
    touch(tmp_path, "m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "m-dspark.gguf")
    assert find_drafter(tmp_path / "m-00001-of-00002.gguf") == tmp_path / "m-dspark.gguf"


def test_models_by_name(tmp_path: Path) -> None:
    touch(tmp_path, "a.gguf", "a-dspark.gguf", "notes.txt")
    touch(tmp_path / "sub", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf")
    assert stored_models(tmp_path) == {"a": tmp_path / "a.gguf", "b": tmp_path / "sub/b-00001-of-00002.gguf"}
    assert find_model("b", tmp_path).name == "b-00001-of-00002.gguf"
    with pytest.raises(MissingError, match=r"no model named 'bb' in .* \(did you mean b\?\)"):
        find_model("bb", tmp_path)


def test_models_by_path(tmp_path: Path) -> None:
    touch(tmp_path, "a.gguf")
    assert find_model(str(tmp_path / "a.gguf"), tmp_path / "none") == tmp_path / "a.gguf"
    with pytest.raises(RequestError, match=r"nothing\.gguf: no such file"):
        find_model("nothing.gguf", tmp_path)
    with pytest.raises(RequestError, match="is a folder"):
        find_model(str(tmp_path), tmp_path)


def test_shards(tmp_path: Path) -> None:
    touch(tmp_path, "m-00001-of-00003.gguf", "m-00003-of-00003.gguf")
    with pytest.raises(RequestError, match=r"missing m-00002-of-00003\.gguf"):
        find_shards(tmp_path / "m-00001-of-00003.gguf")
    with pytest.raises(RequestError, match="shard 3 of 3"):
        find_shards(tmp_path / "m-00003-of-00003.gguf")
    touch(tmp_path, "m-00002-of-00003.gguf")
    assert [p.name[2:7] for p in find_shards(tmp_path / "m-00001-of-00003.gguf")] == [
        "00001",
        "00002",
        "00003",
    ]


def test_no_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGML" * 10)
    with pytest.raises(RequestError, match="magic"):
        inspect_model(tmp_path / "m.gguf")


def test_the_embedded_model_is_keyed_by_content_and_converter(tmp_path: Path) -> None:
    source = tmp_path / "tiny-ds4"
    touch(source, "model.safetensors", "config.json", "README.md")
    first = embedded_model(source, tmp_path, "v1")
    assert first.model.parent.parent == tmp_path and not first.is_converted
    assert first == embedded_model(source, tmp_path, "v1")
    assert first != embedded_model(source, tmp_path, "v2")
    (source / "README.md").write_text("irrelevant")
    assert first == embedded_model(source, tmp_path, "v1")
    (source / "config.json").write_text("{}")
    assert first != embedded_model(source, tmp_path, "v1")
    touch(first.model.parent, first.model.name, first.drafter.name)
    assert first.is_converted
    assert find_drafter(first.model) == first.drafter


def test_an_installation_without_the_embedded_model(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="embedded model is missing"):
        embedded_model(tmp_path, tmp_path, "v1")
