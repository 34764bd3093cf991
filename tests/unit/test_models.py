"""Finding models and drafters, and whether they fit, on headers written here."""

from dataclasses import replace
from pathlib import Path

import pytest

from pylucebox.core.errors import MissingError, RequestError
from pylucebox.runtime.models import (
    ModelFile,
    drafter_misfit,
    embedded_model,
    find_drafter,
    find_model,
    find_shards,
    stored_models,
)

MODEL = ModelFile(
    paths=(Path("m.gguf"),),
    name="m",
    architecture="deepseek4",
    types={"F32": 2, "BF16": 30, "MXFP4": 30},
    size_bytes=1,
    context_tokens=64,
    embedding_length=256,
    layers=8,
    vocab_size=4096,
    has_template=True,
    default_thinking=None,
    draft_tokens=None,
    target_layers=(),
)
DRAFTER = replace(MODEL, architecture="dflash", layers=3, draft_tokens=5, target_layers=(6, 7, 8))


def touch(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


def test_a_fitting_pair() -> None:
    assert drafter_misfit(MODEL, DRAFTER) is None


@pytest.mark.parametrize(
    ("model", "drafter", "why"),
    [
        ({"architecture": "llama"}, {}, "the model is llama, not deepseek4"),
        ({}, {"architecture": "deepseek4"}, "it is deepseek4, not dflash"),
        ({}, {"embedding_length": 4096}, "its embedding_length is 4096, the model's 256"),
        ({}, {"vocab_size": 129280}, "its vocab_size is 129280, the model's 4096"),
        ({}, {"draft_tokens": None}, "its block size or target layers are missing"),
        ({}, {"target_layers": ()}, "its block size or target layers are missing"),
        ({"layers": 7}, {}, "it reads layers 6, 7, 8, the model has 7"),
        ({}, {"target_layers": (0, 1)}, "it reads layers 0, 1, the model has 8"),
    ],
)
def test_pairs_that_do_not_fit(model: dict, drafter: dict, why: str) -> None:
    assert drafter_misfit(replace(MODEL, **model), replace(DRAFTER, **drafter)) == why


def test_types_for_people() -> None:
    assert MODEL.type_summary == "BF16 30, MXFP4 30, F32 2"


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
        ModelFile.read(tmp_path / "m.gguf")


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
