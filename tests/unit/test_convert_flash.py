"""DeepSeek-V4-Flash-0731 in its full size, as sparse files: published counts and sizes."""

import json
import struct
from pathlib import Path

import pytest
from synthetic_checkpoint import CONFIG, ITEM_BYTES, Maker, Stored, write_tokenizer

from pylucebox.formats.checkpoint import open_checkpoint
from pylucebox.formats.convert import plan_conversion
from pylucebox.formats.ledger import Role

FLASH = CONFIG | {
    "vocab_size": 129280,
    "hidden_size": 4096,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1024,
    "o_lora_rank": 1024,
    "o_groups": 8,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 6,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0, 0, 0],
    "max_position_embeddings": 1048576,
    "sliding_window": 128,
    "index_n_heads": 64,
    "index_topk": 512,
    "swiglu_limit": 10.0,
    "dspark_block_size": 5,
    "dspark_markov_rank": 256,
    "dspark_noise_token_id": 128799,
    "dspark_target_layer_ids": [40, 41, 42],
}
# Of the published index.
TENSORS, PAYLOAD_BYTES, SHARDS = 72_317, 166_878_536_440, 48


class Shapes(Maker):
    """Records shapes and leaves the data out."""

    def f32(self, name: str, *shape: int) -> None:
        self.tensors[name] = Stored("F32", shape, b"")

    def bf16(self, name: str, *shape: int) -> None:
        self.tensors[name] = Stored("BF16", shape, b"")

    def norm(self, name: str, width: int) -> None:
        self.bf16(name, width)

    def fp8(self, name: str, rows: int, columns: int) -> None:
        self.tensors[name + ".weight"] = Stored("F8_E4M3", (rows, columns), b"")
        self.tensors[name + ".scale"] = Stored("F8_E8M0", (-(-rows // 128), -(-columns // 128)), b"")

    def fp4(self, name: str, rows: int, columns: int) -> None:
        self.tensors[name + ".weight"] = Stored("I8", (rows, columns // 2), b"")
        self.tensors[name + ".scale"] = Stored("F8_E8M0", (rows, columns // 32), b"")

    def moe(self, prefix: str, hashed: bool) -> None:
        super().moe(prefix, False)
        if hashed:
            del self.tensors[prefix + "gate.bias"]
            self.tensors[prefix + "gate.tid2eid"] = Stored("I64", (129280, 6), b"")


def save_sparse(folder: Path, tensors: dict[str, Stored]) -> None:
    """Write headers only; the data is a hole in the file."""
    weight_map: dict[str, str] = {}
    for shard in range(SHARDS):
        name = f"model-{shard + 1:05d}-of-{SHARDS:05d}.safetensors"
        header, position = {}, 0
        for key in list(tensors)[shard::SHARDS]:
            stored = tensors[key]
            size = ITEM_BYTES[stored.dtype]
            for extent in stored.shape:
                size *= extent
            header[key] = {
                "dtype": stored.dtype,
                "shape": stored.shape,
                "data_offsets": [position, position + size],
            }
            position += size
            weight_map[key] = name
        text = json.dumps(header).encode()
        with (folder / name).open("wb") as stream:
            stream.write(struct.pack("<Q", len(text)) + text)
            stream.truncate(8 + len(text) + position)
    index = {"metadata": {"total_size": PAYLOAD_BYTES}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(FLASH))
    write_tokenizer(folder / "tokenizer.json")


@pytest.fixture(scope="module")
def flash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flash")
    maker = Shapes(FLASH)
    maker.target()
    maker.dspark()
    assert len(maker.tensors) == TENSORS
    save_sparse(folder, maker.tensors)
    return folder


def test_published_counts_and_sizes(flash: Path) -> None:
    made = plan_conversion(open_checkpoint(flash), Role.TARGET, "mxfp4", flash / "x.gguf")
    assert len(made.tensors) == 1328 and made.notes == ()  # no note: the payload is what the index says
    assert made.types["MXFP4"][0] == 129 and made.types["I32"][0] == 3
    assert abs(made.size_bytes - 156.4e9) < 0.1e9
    assert made.peak_memory_bytes < 256 << 20


def test_drafter_counts(flash: Path) -> None:
    made = plan_conversion(open_checkpoint(flash), Role.DRAFTER, "mxfp4", flash / "x.gguf")
    assert len(made.tensors) == 3 * 24 + 9
    assert abs(made.size_bytes - 10e9) < 1e9
