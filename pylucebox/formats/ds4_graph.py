"""The graph of a DeepSeek-V4 target on one micro-batch, as sizes alone, in the order the server computes it.

Letters as in ds4_tensors: E hidden size, D head size. T: tokens; streams: sequences with caches of their own.
"""

from dataclasses import dataclass
from fractions import Fraction

from pylucebox.formats.gguf_types import TensorType
from pylucebox.formats.graph_memory import F16, F32, I32, I64, Graph, Tensor
from pylucebox.formats.graph_operations import (
    compute,
    like,
    matmul,
    norm,
    permute,
    rotate,
    rows,
    store,
    view,
    weight,
)
from pylucebox.formats.inspect import ModelInfo

CSA_RATIO, HCA_RATIO = 4, 128
LEAST_ROTATION = 64


@dataclass(frozen=True)
class Batch:
    """What a graph is made for. Cells are those of one stream; outputs: tokens whose logits are wanted."""

    tokens: int
    streams: int
    window_cells: int
    csa_cells: int
    hca_cells: int
    outputs: int
    rollback: int  # copies of the compressors' state beside the current one
    kv_type: TensorType  # of the caches
    flash_attention: bool = True
    features: tuple[int, ...] = ()  # layers whose input a drafter reads

    @property
    def kv_bytes(self) -> Fraction:
        """Bytes of a value in the caches."""
        return Fraction(self.kv_type.block_bytes, self.kv_type.block_values)

    @property
    def quantised(self) -> bool:
        return self.kv_type.block_values > 1


@dataclass(frozen=True)
class Compressor:
    """Inputs of one kind of compressed row. width: of a state row."""

    ratio: int
    head: int
    width: int
    state_rows: int
    cells: int
    position: Tensor
    persist_from: Tensor
    persist_to: Tensor
    restore: tuple[Tensor, Tensor] | None
    snapshot: tuple[Tensor, Tensor] | None
    read: Tensor
    write: Tensor
    write_position: Tensor
    mask: Tensor
    rotation: Tensor | None


class Ds4Graph:
    """Builds the graph of one model and batch."""

    def __init__(self, model: ModelInfo, batch: Batch) -> None:
        self.batch, self.graph = batch, Graph()
        self.E = model.count("embedding_length")
        self.streams_in_state = model.count("hyper_connection.count")
        self.heads, self.D = (
            model.count("attention.head_count"),
            model.count("attention.key_length"),
        )
        self.q_rank = model.count("attention.q_lora_rank")
        self.o_rank = model.count("attention.output_lora_rank")
        self.groups = model.count("attention.output_group_count")
        self.experts, self.used = model.count("expert_count"), model.count("expert_used_count")
        self.F = model.count("expert_feed_forward_length")
        self.shared = model.count("expert_shared_count", 1) * self.F
        self.index_heads = model.count("attention.indexer.head_count")
        self.index_head = model.count("attention.indexer.key_length")
        self.top_k = model.count("attention.indexer.top_k")
        self.hash_layers = model.count("hash_layer_count", 0, least=0)
        self.vocab = model.vocabulary
        self.ratios = model.counts("attention.compress_ratios")
        self.T = batch.tokens
        self._inputs()

    def _inputs(self) -> None:
        b, mask = self.batch, F16 if self.batch.flash_attention else F32
        per_stream = self.T // b.streams
        self.tokens, self.position = Tensor((self.T,), I32), Tensor((self.T,), I32)
        self.out_ids, self.key_ids = Tensor((b.outputs,), I32), Tensor((self.T,), I64)
        self.window_mask = Tensor((b.window_cells, per_stream, 1, b.streams), mask)
        self.rotation = self._rotation(b.quantised)
        self.csa = self._compressor(CSA_RATIO, self.D, 2 * self.D, b.csa_cells, mask)
        self.hca = self._compressor(HCA_RATIO, self.D, self.D, b.hca_cells, mask)
        self.lid = self._compressor(CSA_RATIO, self.index_head, 2 * self.index_head, b.csa_cells, F16)

    def _compressor(self, ratio: int, head: int, width: int, cells: int, mask: int) -> Compressor:
        b = self.batch
        state_rows = (2 * ratio if ratio == CSA_RATIO else ratio) * b.streams
        blocks = self.T // ratio + b.streams
        persist = min(self.T, state_rows)

        def pair(count: int) -> tuple[Tensor, Tensor] | None:
            return (Tensor((count,), I32), Tensor((count,), I32)) if count else None

        return Compressor(
            ratio, head, width, state_rows, cells,
            position=Tensor((self.T,), I32),
            persist_from=Tensor((persist,), I32),
            persist_to=Tensor((persist,), I32),
            restore=pair(state_rows if b.rollback else 0),
            snapshot=pair(b.rollback * state_rows),
            read=Tensor(((2 if ratio == CSA_RATIO else 1) * ratio * blocks,), I32),
            write=Tensor((blocks,), I64),
            write_position=Tensor((blocks,), I32),
            mask=Tensor((cells, self.T // b.streams, 1, b.streams), mask),
            rotation=Tensor((head, head)) if head == self.index_head else self._rotation(b.quantised),
        )  # fmt: skip

    def _rotation(self, wanted: bool) -> Tensor | None:
        """The matrix that rotates keys before they are quantised: the largest power of two in them."""
        size = self.D & -self.D
        return Tensor((size, size)) if wanted and size >= LEAST_ROTATION else None

    def build(self) -> Graph:
        """Return the whole graph, from token ids to logits."""
        embedded = compute("get_rows", (self.E, self.T), weight(self.E, self.vocab), self.tokens)
        self.graph.expand(embedded)
        self.graph.expand(Tensor((self.E, self.T)))  # where embeddings would come in, in place of ids
        self.graph.expand(self.window_mask)
        state = compute(
            "repeat", (self.E, self.streams_in_state, self.T), view(embedded, (self.E, 1, self.T))
        )
        for layer, ratio in enumerate(self.ratios):
            self._feature(state, layer)
            state = self._layer(state, layer, ratio)
        self._feature(state, len(self.ratios))
        flat = view(state, (self.E * self.streams_in_state, self.T))
        flat = compute("get_rows", (flat.shape[0], self.batch.outputs), flat, self.out_ids)
        state = view(flat, (self.E, self.streams_in_state, self.batch.outputs))
        self.graph.expand(matmul(self.vocab, norm(self._head(state))))
        return self.graph

    def _layer(self, state: Tensor, layer: int, ratio: int) -> Tensor:
        cur, post, comb = self._mix(state)
        cur = self._attention(norm(cur), ratio)
        state = like("hc_post", state, cur, post, comb)
        cur, post, comb = self._mix(state)
        for made in (state, post, comb):
            self.graph.expand(made)
        cur = norm(cur)
        routed = self._experts(cur, hashed=layer < self.hash_layers)
        up, gate = matmul(self.shared, cur), matmul(self.shared, cur)
        shared = matmul(self.E, compute("glu", up.shape, gate, up))
        return like("hc_post", state, like("add", routed, shared), post, comb)

    def _feature(self, state: Tensor, layer: int) -> None:
        """The mean over the streams, which stays for the drafter to read."""
        if layer not in self.batch.features:
            return
        shape, row = (self.E, self.T), state.strides[2]
        strides = (F32, row, row * self.T, row * self.T)
        mean = view(state, shape, strides)
        for _ in range(1, self.streams_in_state):
            mean = compute("add", shape, mean, view(state, shape, strides))
        mean = self.graph.expand(like("scale", mean))
        mean.is_output = True

    def _mix(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Hyper-connection before a block: its input, and what leads out of it."""
        h, count = self.streams_in_state, state.shape[2]
        mixes = matmul((2 + h) * h, like("rms_norm", view(state, (self.E * h, count))))

        def gate(last: str) -> Tensor:
            x = like("add", compute("mul", (h, count), rows(mixes, h, count), weight(1)), weight(h))
            return like("scale", like("unary", x)) if last else x

        pre, post = gate("bias"), gate("scale")
        comb = compute("hc_comb", (h, h, count), mixes, weight(3), weight((2 + h) * h))
        return compute("hc_pre", (self.E, count), state, pre), post, comb

    def _head(self, state: Tensor) -> Tensor:
        h, count = self.streams_in_state, state.shape[2]
        mixes = matmul(h, like("rms_norm", view(state, (self.E * h, count))))
        pre = like("scale", like("unary", like("add", like("mul", mixes, weight(1)), weight(h))))
        result: Tensor | None = None
        for stream in range(h):
            strides = (F32, h * F32 * self.E, count * h * F32 * self.E, count * h * F32 * self.E)
            part = view(state, (self.E, count), strides)
            cur = compute("mul", (self.E, count), part, rows(pre, 1, count))
            result = like("add", result, cur) if result else cur
            del stream
        assert result is not None
        return result

    def _experts(self, cur: Tensor, *, hashed: bool) -> Tensor:
        t, k = self.T, self.used
        chosen = None
        if hashed:
            chosen = compute("get_rows", (k, t), weight(k, self.vocab), self.tokens, width=I32)
        probs = like("sqrt", like("unary", matmul(self.experts, cur)))
        if chosen is None:
            order = like("argsort", like("add", probs, weight(self.experts)))
            chosen = rows(order, k, t)
        weights = compute("get_rows", (1, k, t), view(probs, (1, self.experts, t)), chosen)
        weights = view(weights, (k, t))
        total = like("clamp", compute("sum_rows", (1, t), weights))
        weights = view(like("div", weights, total), (1, k, t))
        weights = self.graph.expand(like("scale", weights))
        wide = view(cur, (self.E, 1, t))
        up = compute("mul_mat_id", (self.F, k, t), weight(self.E, self.F, self.experts), wide, chosen)
        gate = compute("mul_mat_id", (self.F, k, t), weight(self.E, self.F, self.experts), wide, chosen)
        glu = like("glu", gate, up)
        out = compute("mul_mat_id", (self.E, k, t), weight(self.F, self.E, self.experts), glu, chosen)
        out = self.graph.expand(like("mul", out, weights))
        strides = (F32, out.strides[2], out.strides[2] * t, out.strides[2] * t)
        parts = [self.graph.expand(view(out, (self.E, t), strides)) for _ in range(k)]
        result = parts[0]
        for part in parts[1:]:
            result = self.graph.expand(compute("add", (self.E, t), result, part))
        return result if k > 1 else compute("cont", (self.E, t), result)

    def _attention(self, cur: Tensor, ratio: int) -> Tensor:
        t, g = self.T, self.groups
        qr = norm(matmul(self.q_rank, cur))
        q = view(matmul(self.heads * self.D, qr), (self.D, self.heads, t))
        q = like("rope", like("rms_norm", q), self.position)
        kv = view(norm(matmul(self.D, cur)), (self.D, 1, t))
        kv = like("rope", kv, self.position)
        if ratio == CSA_RATIO:
            self._compress(self.csa, cur)
            self._compress(self.lid, cur)
        elif ratio == HCA_RATIO:
            self._compress(self.hca, cur)
        chosen = self._choose(qr, cur) if ratio == CSA_RATIO else None
        out = view(self._attend(q, kv, ratio, chosen), (self.D, self.heads, t))
        out = like("rope", out, self.position)
        out = permute(view(out, (self.heads // g * self.D, g, t)), 0, 2, 1, 3)
        grouped = compute("mul_mat", (self.o_rank, t, g), weight(out.shape[0], self.o_rank, g), out)
        joined = compute("cont", (self.o_rank * g, t), permute(grouped, 0, 2, 1, 3))
        return matmul(self.E, joined)

    def _compress(self, c: Compressor, cur: Tensor) -> None:
        """Projections of the tokens, the finished blocks, and what the next batch will read."""
        kv = matmul(c.width, cur)
        score = matmul(c.width, cur)
        ape = compute("get_rows", (c.width, self.T), weight(c.width, c.ratio), c.position)
        score = like("add", score, ape)
        states = [self._restored(c) for _ in range(2)]
        now = [
            compute("concat", (c.width, c.state_rows + self.T), rows(state, c.width, c.state_rows), new)
            for state, new in zip(states, (kv, score), strict=True)
        ]
        rows_read = self._overlapping(c, *now) if c.ratio == CSA_RATIO else self._whole(c, *now)
        block = rotate(self._pooled(c, *rows_read), c.rotation)
        cache = Tensor((c.head, c.cells * self.batch.streams), self.batch.kv_bytes, stored=True)
        self.graph.expand(store(cache, view(block, (c.head, block.shape[1])), c.write))
        self._keep(c, states, (kv, score))

    def _restored(self, c: Compressor) -> Tensor:
        count = c.state_rows * (1 + self.batch.rollback)
        state = Tensor((c.width, count), stored=True)
        if c.restore is None:
            return view(state, (c.width, count))
        source, target = c.restore
        read = compute("get_rows", (c.width, c.state_rows), view(state, (c.width, count)), source)
        return store(view(state, (c.width, count)), read, target)

    def _keep(self, c: Compressor, states: list[Tensor], new: tuple[Tensor, Tensor]) -> None:
        count = c.state_rows * (1 + self.batch.rollback)
        everything = [
            compute("concat", (c.width, count + self.T), state, tokens)
            for state, tokens in zip(states, new, strict=True)
        ]
        if c.snapshot is not None:
            for source in everything:
                read = compute("get_rows", (c.width, c.snapshot[0].shape[0]), source, c.snapshot[0])
                self.graph.expand(store(Tensor((c.width, count), stored=True), read, c.snapshot[1]))
        kept = [compute("get_rows", (c.width, c.persist_from.shape[0]), n, c.persist_from) for n in new]
        for read in kept:
            self.graph.expand(store(Tensor((c.width, count), stored=True), read, c.persist_to))

    def _overlapping(self, c: Compressor, kv: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
        blocks, count = c.write.shape[0], c.read.shape[0]
        read = []
        for source in (kv, score):
            row = view(like("scale", view(source, (c.width,))), (c.width, 1))
            longer = compute("concat", (c.width, source.shape[1] + 1), source, row)
            read.append(compute("get_rows", (c.width, count), longer, c.read))
        before = [self._half(c, r, count // 2, blocks) for r in read]
        after = [self._half(c, r, count // 2, blocks) for r in read]
        joined = [
            compute("concat", (c.head, 2 * c.ratio, blocks), b, a) for b, a in zip(before, after, strict=True)
        ]
        return joined[0], joined[1]

    def _half(self, c: Compressor, read: Tensor, count: int, blocks: int) -> Tensor:
        return view(compute("cont", (c.head, count), rows(read, c.head, count)), (c.head, c.ratio, blocks))

    def _whole(self, c: Compressor, kv: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
        blocks = c.write.shape[0]
        read = [compute("get_rows", (c.width, c.read.shape[0]), source, c.read) for source in (kv, score)]
        return view(read[0], (c.head, c.ratio, blocks)), view(read[1], (c.head, c.ratio, blocks))

    def _pooled(self, c: Compressor, kv: Tensor, score: Tensor) -> Tensor:
        values, scores = (permute(x, 1, 0, 2, 3) for x in (kv, score))
        values, scores = like("cont", values), like("cont", scores)
        comp = like("mul", values, like("soft_max", scores))
        comp = compute("sum_rows", (1, *comp.shape[1:]), comp)
        comp = like("cont", permute(comp, 1, 0, 2, 3))
        return like("rope", norm(comp), c.write_position)

    def _choose(self, qr: Tensor, cur: Tensor) -> Tensor:
        """Indexer: the blocks that each token looks at."""
        b = self.batch
        per_stream = self.T // b.streams
        q = view(matmul(self.index_heads * self.index_head, qr), (self.index_head, self.index_heads, self.T))
        q = rotate(like("rope", q, self.position), self.lid.rotation)
        weights = like("scale", matmul(self.index_heads, cur))
        keys = Tensor((self.index_head, 1, b.csa_cells, b.streams), b.kv_bytes, stored=True)
        q = view(q, (self.index_head, self.index_heads, per_stream, b.streams))
        weights = view(weights, (self.index_heads, per_stream, 1, b.streams))
        keys = view(keys, keys.shape)
        score = compute(
            "lightning_indexer", (b.csa_cells, per_stream, 1, b.streams), q, keys, weights, self.lid.mask
        )
        count = min(b.csa_cells, self.top_k)
        best = compute("top_k", (count, *score.shape[1:]), score, width=I32)
        return like("cont", best)

    def _attend(self, q: Tensor, kv: Tensor, ratio: int, chosen: Tensor | None) -> Tensor:
        b = self.batch
        q, kv = self.graph.expand(rotate(q, self.rotation)), rotate(kv, self.rotation)
        self.graph.expand(kv)
        cache = Tensor((self.D, b.window_cells * b.streams), b.kv_bytes, stored=True)
        self.graph.expand(store(cache, view(kv, (self.D, self.T)), self.key_ids))
        keys = view(cache, (self.D, 1, b.window_cells, b.streams))
        mask = self.window_mask
        if ratio:
            c = self.csa if ratio == CSA_RATIO else self.hca
            more = Tensor((self.D, 1, c.cells, b.streams), b.kv_bytes, stored=True)
            total = b.window_cells + c.cells
            keys = compute(
                "concat", (self.D, 1, total, b.streams), keys, view(more, more.shape), width=b.kv_bytes
            )
            block_mask = self._chosen_mask(c, chosen) if chosen else c.mask
            mask = compute("concat", (total, *mask.shape[1:]), mask, block_mask, width=mask.width)
        return rotate(self._softmax_attention(q, keys, mask), self.rotation)

    def _softmax_attention(self, q: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        b = self.batch
        per_stream = self.T // b.streams
        q = view(q, (self.D, self.heads, per_stream, b.streams))
        q, keys = permute(q, 0, 2, 1, 3), permute(keys, 0, 2, 1, 3)
        sinks = weight(self.heads)
        if b.flash_attention:
            shape = (self.D, self.heads, per_stream, b.streams)
            pair = [keys, keys]
            if b.kv_bytes == F32:  # keys and values are the same rows, but converted one by one
                pair = [compute("cpy", keys.shape, keys, width=F16) for _ in pair]
            out = compute("flash_attn", shape, q, *pair, mask, sinks)
            return view(out, (self.D * self.heads, self.T))
        cells = keys.shape[1]
        kq = compute("mul_mat", (cells, per_stream, self.heads, b.streams), keys, q)
        kq = like("soft_max", kq, mask, sinks)
        values = compute("cont", (cells, self.D, 1, b.streams), permute(keys, 1, 0, 2, 3), width=b.kv_bytes)
        kqv = compute("mul_mat", (self.D, per_stream, self.heads, b.streams), values, kq)
        return compute("cont", (self.D * self.heads, self.T), permute(kqv, 0, 2, 1, 3))

    def _chosen_mask(self, c: Compressor, chosen: Tensor) -> Tensor:
        """A mask that leaves the chosen blocks alone."""
        closed = like("fill", c.mask)
        flat = view(closed, (1, *c.mask.shape[:2], c.mask.shape[3]))
        which = view(chosen, (chosen.shape[0], chosen.shape[1], chosen.shape[3]))
        zeros = like("fill", Tensor((1, *which.shape[:3]), c.mask.width))
        opened = store(flat, zeros, which)
        return like("add", view(opened, c.mask.shape), c.mask)
