"""How much memory the server will take for a model, a context and a drafter, predicted from headers.

Caches follow the server's own arithmetic: a window of raw keys on every layer, one compressed row for 4 or
128 tokens on the layers that compress, an indexer row for 4 tokens, the compressors' running state in F32.
Each sequence has its own. The target's compute buffer is that of its graph, see ds4_graph.py; the drafter's
is an estimate, see there.
"""

from dataclasses import dataclass

from pylucebox.core.errors import RequestError
from pylucebox.formats.ds4_graph import Batch, Ds4Graph
from pylucebox.formats.gguf_types import TYPES, align
from pylucebox.formats.graph_memory import buffer_bytes
from pylucebox.formats.inspect import TARGET_ARCHITECTURE, ModelInfo
from pylucebox.formats.model_keys import SHOWN

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
    output_bytes: int
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
    _require_target(model)
    total = align(context_tokens, CELL_PADDING)
    # the server cuts the target's batches before it rounds the context up, the drafter's behind that
    ubatch, drafter_ubatch = min(context_tokens, ubatch), min(total, ubatch)
    cells = total if unified else align(max(1, total // parallel), CELL_PADDING)
    block = drafter.dspark.block_size if drafter and drafter.dspark else 0
    drafts = block if draft_tokens is None else draft_tokens
    planes = parallel * (1 + drafts)
    batch = _target_batch(model, drafter, cells, parallel, drafts, ubatch, kv_type, flash_attention)
    drafter_tokens = -(-drafter_ubatch // parallel) * parallel
    drafter_cells = _drafter_cells(drafter, cells, drafter_ubatch, parallel if unified else 1)
    window = batch.window_cells * _row_bytes(model, "attention.key_length", kv_type)
    return MemoryPlan(
        context_tokens=cells,
        weights_bytes=model.tensor_bytes,
        window_cache_bytes=parallel * model.count("block_count") * window,
        compressed_cache_bytes=parallel * _compressed_bytes(model, cells, kv_type),
        compressor_state_bytes=planes * _state_bytes(model),
        output_bytes=planes * model.vocabulary * F32_BYTES,
        drafter_weights_bytes=drafter.tensor_bytes if drafter else 0,
        drafter_cache_bytes=_drafter_cache(drafter, drafter_cells, parallel, drafter_kv_type, unified),
        compute_bytes=buffer_bytes(Ds4Graph(model, batch).build()),
        drafter_compute_bytes=_drafter_compute(drafter, drafter_tokens, drafter_cells, flash_attention),
    )


def _require_target(model: ModelInfo) -> None:
    if not model.is_target:
        raise RequestError(
            f"{model.path}: key general.architecture is {model.architecture[:SHOWN]}, only "
            f"{TARGET_ARCHITECTURE} can be planned",
            hint="give a DeepSeek-V4 target, as `lucebox convert` makes it",
        )


def _target_batch(
    model: ModelInfo,
    drafter: ModelInfo | None,
    cells: int,
    parallel: int,
    drafts: int,
    ubatch: int,
    kv_type: str,
    flash_attention: bool,
) -> Batch:
    """Return the largest batch that the server reserves memory for."""
    tokens = -(-ubatch // parallel) * parallel
    return Batch(
        tokens=tokens,
        streams=parallel,
        window_cells=_window_cells(model, cells, ubatch),
        csa_cells=_compressed_cells(cells, CSA_RATIO),
        hca_cells=_compressed_cells(cells, HCA_RATIO),
        outputs=min(tokens, parallel * (1 + drafts)),
        rollback=drafts,
        kv_type=TYPES[kv_type],
        flash_attention=flash_attention,
        features=drafter.dspark.target_layers if drafter and drafter.dspark else (),
    )


def _ratios(model: ModelInfo) -> tuple[int, int]:
    """Return how many layers compress by 4 and by 128."""
    ratios = model.counts("attention.compress_ratios")
    return ratios.count(CSA_RATIO), ratios.count(HCA_RATIO)


def _row_bytes(model: ModelInfo, key: str, kv_type: str) -> int:
    values = model.count(key)
    try:
        return TYPES[kv_type].row_bytes(values)
    except ValueError as odd:
        raise RequestError(
            f"{model.path}: key {model.architecture}.{key}: {odd}", hint="take a cache of another type: F16"
        ) from odd


def _window_cells(model: ModelInfo, cells: int, ubatch: int) -> int:
    return align(min(cells, model.count("attention.sliding_window") + ubatch), CELL_PADDING)


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
        model.count("attention.key_length"),
        model.count("attention.indexer.key_length"),
    )
    return 2 * F32_BYTES * (csa * 2 * CSA_RATIO * 2 * (key + indexer) + hca * HCA_RATIO * key)


def _drafter_cells(drafter: ModelInfo | None, cells: int, ubatch: int, sequences: int) -> int:
    """Return the cells of a drafter's cache; sequences that share a context share the window's cache too."""
    if drafter is None:
        return 0
    window = sequences * drafter.count("attention.sliding_window") + ubatch
    return align(min(cells, window), CELL_PADDING)


def _drafter_cache(drafter: ModelInfo | None, cells: int, parallel: int, kv_type: str, unified: bool) -> int:
    if drafter is None:
        return 0
    row = _row_bytes(drafter, "attention.key_length", kv_type)
    return (1 if unified else parallel) * 2 * drafter.count("block_count") * cells * row


def _drafter_compute(drafter: ModelInfo | None, tokens: int, cells: int, flash_attention: bool) -> int:
    """The largest of five moments of its graph, each fitted to what servers took.

    Logits with their candidates, hyper-connection streams, attention, experts, plain attention.
    Where logits are the largest, 4.6 % too high for a model of the published sizes; else equal in those seen.
    """
    if drafter is None:
        return 0
    e, heads = drafter.count("embedding_length"), drafter.count("attention.head_count")
    streams = drafter.count("hyper_connection.count") * e
    query = heads * drafter.count("attention.key_length")
    experts = drafter.count("expert_used_count") * drafter.count("expert_feed_forward_length")
    mask = cells // 2  # of F16, as floats
    values = max(
        2 * drafter.vocabulary + -(-drafter.vocabulary // tokens) + 5 * e,
        3 * streams + 2 * e + 4 + mask,
        2 * query + streams + 4 * e + 28 + mask,
        3 * experts + 2 * streams + 2 * e + 132 + mask,
        0 if flash_attention else (heads + 1) * cells + 3 * query + 28,
    )
    return tokens * F32_BYTES * values
