"""llama-quantize: mixes of the ROCmFPX file types, what a DeepSeek-V4 file keeps, dialect key, search."""

import math
import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest
from fixture_maker import make_fixture
from small_model import write_small_model

from pylucebox.core.receipts import BuildReceipt
from pylucebox.formats.ds4_keys import target_keys
from pylucebox.formats.gguf_reader import read_header
from pylucebox.formats.gguf_types import TensorInfo, align, build_header
from pylucebox.formats.presets import OURS, FileType, fitting
from pylucebox.formats.rocmfpx import Codec
from pylucebox.formats.rocmfpx_dialect import DIALECT_KEY
from pylucebox.formats.rocmfpx_search import search_scales

BLOCK = "attn_norm attn_qkv attn_q attn_k attn_v attn_kv_b attn_output ffn_norm ffn_gate ffn_up ffn_down"
EXPERTS = "ffn_gate_exps ffn_up_exps ffn_down_exps ffn_gate_shexp ffn_up_shexp ffn_down_shexp"
KEPT = ("hc_", "_ape", "compressor_kv", "compressor_gate", "indexer.proj", "gate_inp", "tid2eid")


def run(build: BuildReceipt, *words: str | Path, status: int = 0) -> str:
    done = subprocess.run([build.quantize_path, *words], capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == status, said
    return said


def planned(build: BuildReceipt, *words: str | Path) -> dict[str, str]:
    """Tensor -> type that llama-quantize would write."""
    line = re.compile(r"\[ *\d+/ *\d+\] (\S+) .*, type = *(\w+), size = [^(\n]*(?:\((\w+)\))?$", re.M)
    found = line.findall(run(build, "--dry-run", *words))
    return {name: (new or old).upper() for name, old, new in found}


def write_names(path: Path, names: str, layers: int, experts: int) -> Path:
    """Write a model of tiny matrices with these names in every layer: types depend on nothing else."""
    writer = gguf.GGUFWriter(path, "llama")
    for key in ("context_length", "embedding_length", "feed_forward_length", "head_count"):
        getattr(writer, f"add_{key}")(256)
    writer.add_block_count(layers)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(64)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)
    whole = ["token_embd", "output", "output_norm", "blk.0.nextn.eh_proj"]
    for name in whole + [f"blk.{i}.{part}" for i in range(layers) for part in names.split()]:
        shape = (256,) if "norm" in name else (max(2, experts), 2, 256) if "exps" in name else (2, 256)
        writer.add_tensor(f"{name}.weight", np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[int, int], Path]:
    folder = tmp_path_factory.mktemp("named")
    cases = [(n, e) for n in (1, 7, 16, 43) for e in (0, 8)]
    parts = {0: BLOCK, 8: f"{BLOCK} {EXPERTS}"}
    return {(n, e): write_names(folder / f"{n}-{e}.gguf", parts[e], n, e) for n, e in cases}


def write_empty_ds4(path: Path, **changes: object) -> Path:
    """Write a DeepSeek-V4 file of zeros that takes no room: header and a hole."""
    raw = {**make_fixture.COMMON, **changes}
    ratios = raw["compress_ratios"]
    config = make_fixture.parse_config({**raw, "num_hidden_layers": len(ratios)}, path)
    infos = [
        TensorInfo(t.name, t.shape, t.type, math.prod(t.shape[:-1]) * t.type.row_bytes(t.shape[-1]))
        for t in make_fixture.all_tensors(config, make_fixture.Types())
    ]
    keys = [*target_keys(config), *make_fixture.tokenizer(config.vocab_size)]
    with path.open("wb") as out:
        out.write(build_header("deepseek4", keys, infos))
        out.truncate(out.tell() + sum(align(info.size_bytes) for info in infos))
    return path


@pytest.fixture(scope="module")
def flash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 43 layers of the real model, with rows that every block divides."""
    path = tmp_path_factory.mktemp("flash") / "flash.gguf"
    wide = {"hidden_size": 256, "moe_intermediate_size": 256, "q_lora_rank": 256, "o_lora_rank": 256}
    return write_empty_ds4(path, compress_ratios=make_fixture.TRUE_RATIOS, **wide)


@pytest.mark.parametrize("file_type", OURS, ids=lambda t: t.name)
def test_both_homes_of_the_mixes_agree(
    build: BuildReceipt, named: Mapping[tuple[int, int], Path], file_type: FileType
) -> None:
    for (layers, experts), path in named.items():
        found = planned(build, path, file_type.name)
        matrices = {n: t for n, t in found.items() if "norm" not in n}
        wanted = {n: fitting(file_type.type_of(n, layers, experts), 256).name for n in matrices}
        assert matrices == wanted, (layers, experts)
        assert {t for n, t in found.items() if "norm" in n} == {"F32"}


def test_strix_on_deepseek(build: BuildReceipt, flash: Path) -> None:
    found = planned(build, flash, "Q2_0_ROCMFP2_STRIX")
    assert Counter(found.values()) == {
        "Q2_0_ROCMFP2": 86,  # gate and up of 43 layers
        "Q3_0_ROCMFPX": 43,  # down
        "Q4_0_ROCMFP4_FAST": 43 * (5 + 3) + 21 + 1,  # attention, shared experts; indexer queries; output
        "Q6_K": 1,  # token embedding
        "F32": 1328 - 129 - 365 - 2 - 3,
        "I32": 3,
    }
    assert {t for n, t in found.items() if "_exps" in n and "down" not in n} == {"Q2_0_ROCMFP2"}
    assert {t for n, t in found.items() if "_shexp" in n or "attn_kv.w" in n} == {"Q4_0_ROCMFP4_FAST"}


def test_first_mix_on_deepseek_counts_as_published(build: BuildReceipt, flash: Path) -> None:
    """A published conversion keeps the experts MXFP4 and has 36 Q5_K and 29 Q6_K tensors by this mix."""
    found = Counter(planned(build, "--tensor-type", "_exps=mxfp4", flash, "Q4_0_ROCMFP4").values())
    assert (found["MXFP4"], found["Q5_K"], found["Q6_K"]) == (129, 36, 29)


@pytest.mark.parametrize("name", ["Q2_0_ROCMFP2", "Q4_K_M", "Q2_K", "MXFP4_MOE", "F16"])
@pytest.mark.parametrize(
    "how", [(), ("--pure",), ("--tensor-type", ".*=q4_0")], ids=["mix", "pure", "forced"]
)
def test_what_steers_a_deepseek_model_stays_as_stored(
    build: BuildReceipt, flash: Path, name: str, how: tuple[str, ...]
) -> None:
    found = planned(build, *how, flash, name)
    kept = {n: t for n, t in found.items() if any(part in n for part in KEPT)}
    assert len(kept) == 43 * 6 + 3 + 41 * 3 + 21 * 4 + 43 + 3
    assert set(kept.values()) == {"F32", "I32"}
    assert {t for n, t in found.items() if "_exps" in n} & {"F32"} == set()


def test_other_models_keep_upstreams_choices(
    build: BuildReceipt, named: Mapping[tuple[int, int], Path]
) -> None:
    """Upstream's own mixes are untouched: half of attn_v at Q6_K in Q4_K_M, as it has always been."""
    found = planned(build, named[16, 0], "Q4_K_M")
    assert Counter(t for n, t in found.items() if "ffn_down" in n) == {"Q6_K": 8, "Q4_K": 8}
    assert found["output.weight"] == "Q6_K" and found["blk.3.attn_q.weight"] == "Q4_K"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_small_model(tmp_path / "small.gguf")


def test_files_with_type_107_name_its_dialect(build: BuildReceipt, model: Path, tmp_path: Path) -> None:
    packed, plain = tmp_path / "packed.gguf", tmp_path / "plain.gguf"
    run(build, model, packed, "Q2_0_ROCMFP2")
    assert read_header(packed).value(DIALECT_KEY) == "A"
    run(build, "--allow-requantize", packed, plain, "Q8_0")
    assert DIALECT_KEY not in read_header(plain).keys
    run(build, "--tensor-type", "ffn_up=q2_0_rocmfp2", model, plain, "Q8_0")
    assert read_header(plain).value(DIALECT_KEY) == "A"


@pytest.mark.parametrize("said", [None, "B"])
def test_type_107_of_an_unknown_dialect_is_refused(
    build: BuildReceipt, model: Path, tmp_path: Path, said: str | None
) -> None:
    packed, out = tmp_path / "packed.gguf", tmp_path / "out.gguf"
    run(build, model, packed, "Q2_0_ROCMFP2")
    data = packed.read_bytes()
    key = DIALECT_KEY.encode()
    changed = key.replace(b"dialect", b"dialekt") if said is None else key
    value = b"\x08\0\0\0\x01\0\0\0\0\0\0\0"
    packed.write_bytes(data.replace(key + value + b"A", changed + value + (said or "A").encode(), 1))
    told = run(build, "--allow-requantize", packed, out, "Q8_0", status=1)
    assert "type q2_0_rocmfp2 may be of another dialect" in told and "`lucebox quantize`" in told
    assert not out.exists()
    given = ("--override-kv", f"{DIALECT_KEY}=str:A")
    run(build, "--allow-requantize", *given, packed, out, "Q8_0")


def tensor_bytes(path: Path, name: str) -> np.ndarray:
    header = read_header(path)
    (info,) = (t for t in header.tensors if t.name == name)
    data = np.fromfile(path, np.uint8, info.size_bytes, offset=header.data_offset + info.offset)
    return data.reshape(*info.shape[:-1], -1)


@pytest.mark.parametrize("type_name", [t.name for t in OURS if t.name == t.base])
@pytest.mark.parametrize("search", [False, True])
def test_bytes_are_those_of_the_numpy_codecs(
    build: BuildReceipt, model: Path, tmp_path: Path, type_name: str, search: bool
) -> None:
    out, again = tmp_path / "out.gguf", tmp_path / "again.gguf"
    given = ("--override-kv", "lucebox.quantize.search=bool:true") if search else ()
    run(build, "--pure", *given, model, out, type_name, "2")
    codec = next(c for c in Codec.by_id.values() if c.name.upper() == type_name)
    values = tensor_bytes(model, "blk.0.ffn_down.weight").view(np.float32)
    wanted = search_scales(codec, values) if search else codec.encode(values)
    assert np.array_equal(tensor_bytes(out, "blk.0.ffn_down.weight"), wanted)
    assert read_header(out).value("lucebox.quantize.search") is (True if search else None)
    run(build, "--allow-requantize", *((f"--override-kv {DIALECT_KEY}=str:A").split()), out, again, "F32")
    assert read_header(again).value("lucebox.quantize.search") is None
