"""Random models of tools/make_fixture.py: repeatable bytes, exact header, types where they belong."""

import math
from collections import Counter
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from fixture_maker import make_fixture

from pylucebox.formats.gguf_reader import read_header
from pylucebox.formats.gguf_types import ValueType


def written(path: Path, *words: str) -> Path:
    assert make_fixture.main([*words, "--out", str(path)]) == 0
    return path


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    first = digest(written(tmp_path / "first.gguf", "--seed", "7"))
    assert digest(written(tmp_path / "again.gguf", "--seed", "7")) == first
    assert digest(written(tmp_path / "other.gguf", "--seed", "8")) != first
    assert not list(tmp_path.glob("*.partial"))


def test_header(tmp_path: Path) -> None:
    header = read_header(written(tmp_path / "f.gguf", "--type", "bf16"))
    assert header.value("general.architecture") == "deepseek4"
    assert header.value("deepseek4.attention.compress_ratios") == (0, 0, 4, 128, 4, 128, 4, 128)
    # Upstream refuses other widths: a count is u32, a rate f32.
    assert header.keys["deepseek4.rope.scaling.original_context_length"].type is ValueType.UINT32
    assert header.keys["deepseek4.rope.freq_base"].type is ValueType.FLOAT32
    assert len(header.value("deepseek4.swiglu_clamp_exp")) == header.value("deepseek4.block_count") == 8
    assert len(header.value("tokenizer.ggml.tokens")) == header.value("deepseek4.vocab_size")
    # 6 global; 24 a layer; 4 for each of 6 compressors, 6 more for each of 3 indexers.
    assert len(header.tensors) == 6 + 24 * 8 + 4 * 6 + 6 * 3


def test_what_variants_are_for() -> None:
    a, b, c, d, e = (make_fixture.variant(name) for name in "ABCDE")
    assert a.index_topk > 10_000 and b.index_topk == 8
    assert a.swiglu_limit == 10 and b.swiglu_limit == 0.5
    assert c.head_dim == 512
    assert Counter(d.compress_ratios) == {0: 2, 4: 21, 128: 20} and d.compress_ratios[-1] == 4
    assert e.hidden_size % 256 == 0 and e.moe_intermediate_size % 256 == 0


@pytest.mark.parametrize("name", "ABCDE")
def test_traps(name: str) -> None:
    """What crashes or misleads upstream: heads like indexer heads, odd Hadamard size, few indexer heads."""
    config = make_fixture.variant(name)
    assert config.head_dim != config.index_head_dim
    assert config.index_head_dim % 64 == 0
    assert config.index_n_heads >= 16
    assert config.num_attention_heads % config.o_groups == 0


def test_types_where_they_belong() -> None:
    types = make_fixture.Types(dense="q8_0", gate_up="q2_0_rocmfp2", down="q3_0_rocmfpx")
    tensors = make_fixture.all_tensors(make_fixture.variant("E"), types)
    by_suffix = {t.name.removeprefix("blk.3."): t.type.name for t in tensors}
    assert by_suffix["ffn_gate_exps.weight"] == by_suffix["ffn_up_exps.weight"] == "Q2_0_ROCMFP2"
    assert by_suffix["ffn_down_exps.weight"] == "Q3_0_ROCMFPX"
    assert by_suffix["attn_q_a.weight"] == by_suffix["output.weight"] == "Q8_0"
    for name in ("hc_attn_fn", "attn_compressor_kv", "attn_compressor_ape", "ffn_gate_inp", "attn_norm"):
        assert by_suffix[f"{name}.weight"] == "F32"


def test_row_that_is_no_whole_block_stays_f32() -> None:
    tensors = make_fixture.all_tensors(make_fixture.variant("A"), make_fixture.Types("q2_k", "q2_k", "q2_k"))
    wide = {t.name for t in tensors if t.type.name == "Q2_K"}
    assert wide == {f"blk.{i}.attn_output_b.weight" for i in range(8)}


def test_values() -> None:
    config = make_fixture.variant("A")
    tensors = {t.name: t for t in make_fixture.all_tensors(config, make_fixture.Types())}

    def values(name: str, seed: int = 1) -> np.ndarray:
        return make_fixture.values_of(tensors[name], config.n_routed_experts, seed)

    matrix = values("blk.0.attn_q_b.weight")
    assert matrix.std() == pytest.approx(1 / math.sqrt(64), rel=0.05)
    assert values("blk.0.attn_norm.weight").mean() == pytest.approx(1, abs=0.05)
    assert not np.array_equal(matrix, values("blk.1.attn_q_b.weight"))
    ids = values("blk.2.ffn_gate_tid2eid.weight")
    assert ids.dtype == np.int32 and ids.min() == 0 and ids.max() == 15
    assert all(len(set(row)) == 6 for row in ids.tolist())


def test_type_without_encoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "f.gguf"
    assert make_fixture.main(["--type", "q2_k", "--out", str(out)]) == 2
    assert make_fixture.main(["--type", "q9_z", "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert "q2_k: no encoder" in error and "q9_z: no such tensor type" in error
    assert not list(tmp_path.iterdir())
