"""A conversion to ROCmFPX types, with the build's encoders and in Python, is what llama-quantize makes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from imatrix_maker import write_imatrix
from synthetic_checkpoint import DSPARK, make_tensors, save_checkpoint, small_config
from test_quantize import tensor_bytes

from pylucebox.core.errors import RequestError
from pylucebox.core.receipts import BuildReceipt
from pylucebox.formats.checkpoint import open_checkpoint
from pylucebox.formats.convert import convert, plan_conversion, write_conversion
from pylucebox.formats.encoders import NumpyEncoder
from pylucebox.formats.encoding import Encoding
from pylucebox.formats.gguf_reader import read_header
from pylucebox.formats.gguf_types import TYPES
from pylucebox.formats.imatrix import read_imatrix
from pylucebox.formats.ledger import Role
from pylucebox.formats.presets import OURS, find_file_type
from pylucebox.formats.quantize import Wish, plan_quantization, write_quantization
from pylucebox.formats.rules import read_rules
from pylucebox.runtime.native_encoder import NativeEncoder

ROLES = (Role.TARGET, Role.DRAFTER)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = small_config()
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    return save_checkpoint(folder, config, make_tensors(config, "dspark"))


@pytest.fixture(scope="module")
def masters(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Role, Path]:
    """Files with every value of the checkpoint exactly."""
    folder = tmp_path_factory.mktemp("masters")
    for role in ROLES:
        convert(source, "exact", folder / f"{role.value}.gguf", role)
    return {role: folder / f"{role.value}.gguf" for role in ROLES}


@pytest.fixture(scope="module")
def imatrix(masters: dict[Role, Path]) -> Path:
    """An entry for every matrix; two groups of rows in attn_output_a, as the model has."""
    rng = np.random.default_rng(11)
    entries = {}
    for t in read_header(masters[Role.TARGET]).tensors:
        if len(t.shape) > 1 and t.type.name != "I32":
            slices = t.shape[0] if len(t.shape) == 3 else 2 if "attn_output_a" in t.name else 1
            sums = rng.gamma(0.5, 10, (slices, t.shape[-1]))
            counts = rng.integers(1, 9, (slices, 1))
            entries[t.name] = (sums, counts) if len(t.shape) == 3 else (sums.reshape(1, -1), counts[:1])
    return write_imatrix(masters[Role.TARGET].with_name("i.gguf"), entries)


def same_tensors(a: Path, b: Path) -> None:
    ours, theirs = read_header(a), read_header(b)
    assert {t.name: t.type.name for t in ours.tensors} == {t.name: t.type.name for t in theirs.tensors}
    wrong = [
        t.name
        for t in ours.tensors
        if not np.array_equal(tensor_bytes(a, t.name).ravel(), tensor_bytes(b, t.name).ravel())
    ]
    assert wrong == []


@pytest.mark.parametrize("file_type", OURS, ids=lambda t: t.name.lower())
@pytest.mark.parametrize("role", ROLES, ids=lambda r: r.value)
def test_every_mix_is_llama_quantizes(
    build: BuildReceipt, source: Path, masters: dict[Role, Path], tmp_path: Path, role: Role, file_type: str
) -> None:
    name = find_file_type(file_type.name).name.lower()
    converted, quantised = tmp_path / "c.gguf", tmp_path / "q.gguf"
    with NativeEncoder.of(build, 2) as encoder:
        encoding = Encoding(encoder)
        plan = plan_conversion(open_checkpoint(source), role, name, converted, encoding=encoding)
        write_conversion(plan)
    wish = Wish(masters[role], quantised, find_file_type(name), threads=2)
    write_quantization(plan_quantization(build.quantize_path, wish))
    same_tensors(converted, quantised)
    for key in ("general.file_type", "lucebox.recipe", "lucebox.rocmfp2.dialect"):
        assert read_header(converted).value(key) == read_header(quantised).value(key), key


@pytest.mark.parametrize("search", [False, True])
@pytest.mark.parametrize("name", ["q2_0_rocmfp2_strix", "q8_0_rocmfpx", "q5_1"])
def test_with_importance_and_search(
    build: BuildReceipt,
    source: Path,
    masters: dict[Role, Path],
    imatrix: Path,
    tmp_path: Path,
    name: str,
    search: bool,
) -> None:
    """q5_1 comes from a rules file: the conversion has it for single tensors only."""
    converted, quantised, rules = tmp_path / "c.gguf", tmp_path / "q.gguf", tmp_path / "r"
    rules.write_text("attn_output_a = q5_1\nffn_up_exps = q4_0_rocmfp4\n")
    mix = "q2_0_rocmfp2_strix" if name == "q5_1" else name
    options = {"imatrix": read_imatrix(imatrix), "rules": read_rules(rules) if name == "q5_1" else None}
    with NativeEncoder.of(build, 2, search) as encoder:
        encoding = Encoding(encoder, **options)
        plan = plan_conversion(open_checkpoint(source), Role.TARGET, mix, converted, encoding=encoding)
        write_conversion(replace(plan, chunk_values=3000))  # rows of one expert in several pieces
    wish = Wish(masters[Role.TARGET], quantised, find_file_type(mix), threads=2, search=search, **options)
    write_quantization(plan_quantization(build.quantize_path, wish))
    same_tensors(converted, quantised)
    assert read_header(converted).value("lucebox.quantize.search") is (True if search else None)
    assert read_header(quantised).value("lucebox.quantize.search") is (True if search else None)


@pytest.mark.parametrize("search", [False, True])
def test_python_and_build_encode_the_same(build: BuildReceipt, search: bool) -> None:
    rng = np.random.default_rng(2)
    values = (rng.standard_normal((37, 512)) * rng.gamma(1, 0.05, (37, 1))).astype(np.float32)
    importance = rng.gamma(0.5, 1, 512).astype(np.float32)
    plain = NumpyEncoder(search)
    with NativeEncoder.of(build, 2, search) as native:
        for kind in TYPES.values():
            if kind.name == "I32" or not plain.can_encode(kind):
                continue
            assert native.can_encode(kind), kind.name
            for columns in (None, importance):
                ours, theirs = plain.encode(values, kind, columns), native.encode(values, kind, columns)
                assert np.array_equal(ours, theirs), (kind.name, columns is None)


def test_the_build_encodes_more_types_and_refuses_what_does_not_fit(build: BuildReceipt) -> None:
    with NativeEncoder.of(build, 1) as native:
        known = {kind.name for kind in TYPES.values() if native.can_encode(kind)}
        assert {"Q4_K", "Q5_K", "Q6_K", "Q5_1", "IQ2_XXS", "Q2_0_ROCMFP2", "F16"} <= known
        assert not known & {"Q8_1", "Q8_K", "I32", "F64"}
        huge = np.full((1, 256), 1e38, np.float32)
        with pytest.raises(ValueError, match="does not fit Q4_0"):
            native.encode(huge, TYPES["Q4_0"], None)
        with pytest.raises(ValueError, match="without an importance matrix"):
            native.encode(huge, TYPES["IQ2_XXS"], None)
        with pytest.raises(ValueError, match="no multiple of 256"):
            native.encode(huge[:, :32], TYPES["Q4_K"], None)


def test_quantised_tensors_are_not_rounded_again_unasked(
    build: BuildReceipt, masters: dict[Role, Path], tmp_path: Path
) -> None:
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    wish = Wish(masters[Role.TARGET], first, find_file_type("q8_0"))
    write_quantization(plan_quantization(build.quantize_path, wish))
    again = Wish(first, second, find_file_type("q2_0_rocmfp2"))
    with pytest.raises(RequestError, match="tensors are quantised already, such as"):
        plan_quantization(build.quantize_path, again)
    plan = plan_quantization(build.quantize_path, replace(again, allow_requantize=True))
    write_quantization(plan)
    assert second.is_file() and {p.name for p in tmp_path.iterdir()} == {"a.gguf", "b.gguf"}


def test_drafter_keys_survive(masters: dict[Role, Path]) -> None:
    assert read_header(masters[Role.DRAFTER]).value("dflash.block_size") == DSPARK["dspark_block_size"]
