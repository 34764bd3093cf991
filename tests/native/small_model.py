"""A llama-shaped GGUF of one layer with seeded random weights, small enough to quantise in milliseconds."""

from pathlib import Path

import gguf
import numpy as np

WIDTH, FEED_FORWARD, VOCABULARY, HEADS = 256, 512, 64, 4


def write_small_model(path: Path) -> Path:
    """Write the model in F32 and return its path."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("no_vocab")
    rng = np.random.default_rng(7)
    for name, shape in shapes().items():
        writer.add_tensor(name, rng.normal(0, 0.05, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor, rows first."""
    square, up, down = (WIDTH, WIDTH), (FEED_FORWARD, WIDTH), (WIDTH, FEED_FORWARD)
    layer = {
        **{f"attn_{part}": square for part in ("q", "k", "v", "output")},
        "ffn_gate": up,
        "ffn_up": up,
        "ffn_down": down,
        "attn_norm": (WIDTH,),
        "ffn_norm": (WIDTH,),
    }
    whole = {"token_embd": (VOCABULARY, WIDTH), "output": (VOCABULARY, WIDTH), "output_norm": (WIDTH,)}
    named = {**whole, **{f"blk.0.{part}": shape for part, shape in layer.items()}}
    return {f"{name}.weight": shape for name, shape in named.items()}
