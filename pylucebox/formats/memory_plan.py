"""How much memory the server will take for a model, a context and a drafter, predicted from headers.

Caches follow the server's own arithmetic: a window of raw keys on every layer, one compressed row for 4 or
128 tokens on the layers that compress, an indexer row for 4 tokens, the compressors' running state in F32.
Each sequence has its own. The compute buffer is an estimate.
"""

from dataclasses import dataclass

from pylucebox.core.errors import RequestError
from pylucebox.formats.gguf_types import TYPES, align
from pylucebox.formats.inspect import ModelInfo

CELL_PADDING = 256
CSA_RATIO, HCA_RATIO = 4, 128
F32_BYTES = 4


@dataclass(frozen=True)
class MemoryPlan:
    """Predicted bytes. context_tokens: what one sequence really gets, after the server's rounding."""

    context_tokens: int
    weights_bytes: int
    window_cache_bytes: int
    compressed_cache_bytes: int
    compressor_state_bytes: int
    drafter_weights_bytes: int
    drafter_cache_bytes: int
    compute_bytes: int
    drafter_compute_bytes: int

    @property
    def total_bytes(self) -> int:
        return sum(getattr(self, name) for name in self.__dataclass_fields__ if name.endswith("_bytes"))

    @property
    def cache_bytes(self) -> int:
        """Everything that grows with context or sequences on the target's side."""
        return self.window_cache_bytes + self.compressed_cache_bytes + self.compressor_state_bytes

    def as_dict(self) -> dict[str, int]:
        return {**{n: getattr(self, n) for n in self.__dataclass_fields__}, "total_bytes": self.total_bytes}


def predict(
    model: ModelInfo,
    drafter: ModelInfo | None = None,
    *,
    context_tokens: int,
    ubatch: int = 512,
    parallel: int = 1,
    kv_type: str = "F16",
    drafter_kv_type: str = "F16",
    draft_tokens: int | None = None,
    unified: bool = False,
    flash_attention: bool = True,
) -> MemoryPlan:
    """Predict the memory of serving `model`. Raises RequestError when it is no DeepSeek-V4 target.

    context_tokens: of all sequences together, shared out unless `unified`. draft_tokens: drafted at most a
    step, by default the drafter's block; every one keeps a copy of the compressor state.
    """
    if not model.is_target:
        raise RequestError(
            f"{model.path}: architecture {model.architecture} cannot be planned", hint="give a target"
        )
    total = align(context_tokens, CELL_PADDING)
    cells = total if unified else align(max(1, total // parallel), CELL_PADDING)
    block = drafter.dspark.block_size if drafter and drafter.dspark else 0
    planes = parallel * (1 + (block if draft_tokens is None else draft_tokens))
    window = _window_cells(model, cells, ubatch) * _row_bytes(model, "attention.key_length", kv_type)
    return MemoryPlan(
        context_tokens=cells,
        weights_bytes=model.tensor_bytes,
        window_cache_bytes=parallel * model.layers * window,
        compressed_cache_bytes=parallel * _compressed_bytes(model, cells, kv_type),
        compressor_state_bytes=planes * _state_bytes(model),
        drafter_weights_bytes=drafter.tensor_bytes if drafter else 0,
        drafter_cache_bytes=_drafter_cache(drafter, cells, ubatch, parallel, drafter_kv_type)
        if drafter
        else 0,
        compute_bytes=_compute_bytes(model, cells, ubatch, kv_type, flash_attention),
        drafter_compute_bytes=ubatch * F32_BYTES * _values_per_token(drafter) if drafter else 0,
    )


def _ratios(model: ModelInfo) -> tuple[int, int]:
    """Return how many layers compress by 4 and by 128."""
    ratios = list(model.number("attention.compress_ratios"))[: model.layers]
    return ratios.count(CSA_RATIO), ratios.count(HCA_RATIO)


def _row_bytes(model: ModelInfo, key: str, kv_type: str) -> int:
    return TYPES[kv_type].row_bytes(int(model.number(key)))


def _window_cells(model: ModelInfo, cells: int, ubatch: int) -> int:
    return align(min(cells, int(model.number("attention.sliding_window")) + ubatch), CELL_PADDING)


def _compressed_cells(cells: int, ratio: int) -> int:
    return align(max(1, -(-cells // ratio)), CELL_PADDING)


def _compressed_bytes(model: ModelInfo, cells: int, kv_type: str) -> int:
    csa, hca = _ratios(model)
    key = _row_bytes(model, "attention.key_length", kv_type)
    indexer = _row_bytes(model, "attention.indexer.key_length", kv_type)
    return (
        csa * _compressed_cells(cells, CSA_RATIO) * (key + indexer)
        + hca * _compressed_cells(cells, HCA_RATIO) * key
    )


def _state_bytes(model: ModelInfo) -> int:
    """Key and score rows of one sequence: 8 rows of double width for ratio 4, 128 rows for ratio 128."""
    csa, hca = _ratios(model)
    key, indexer = (
        int(model.number("attention.key_length")),
        int(model.number("attention.indexer.key_length")),
    )
    return 2 * F32_BYTES * (csa * 2 * CSA_RATIO * 2 * (key + indexer) + hca * HCA_RATIO * key)


def _drafter_cache(drafter: ModelInfo, cells: int, ubatch: int, parallel: int, kv_type: str) -> int:
    row = _row_bytes(drafter, "attention.key_length", kv_type)
    return parallel * 2 * drafter.layers * _window_cells(drafter, cells, ubatch) * row


def _compute_bytes(model: ModelInfo, cells: int, ubatch: int, kv_type: str, flash_attention: bool) -> int:
    """Estimate, fitted to what the server prints: above it by at most 30 % on the model it is fitted to."""
    rows = _compressed_cells(cells, CSA_RATIO)
    heads = int(model.number("attention.head_count")) + int(model.number("attention.indexer.head_count"))
    values = _values_per_token(model) + rows * (3 if flash_attention else 1 + heads)
    # The compressed keys are gathered once, whatever the batch.
    gathered = rows * _row_bytes(model, "attention.key_length", kv_type)
    return ubatch * F32_BYTES * values + gathered


def _values_per_token(info: ModelInfo) -> int:
    """Return the floats alive for one token of a batch: logits, hyper-connection streams, queries."""
    streams = int(info.number("hyper_connection.count")) * info.hidden_size
    query = int(info.number("attention.head_count")) * int(info.number("attention.key_length"))
    return info.vocab_size + 3 * streams + 2 * query
