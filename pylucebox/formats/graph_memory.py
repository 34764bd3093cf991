"""How large a compute buffer a graph needs: tensors that only have sizes, and how the server places them.

A graph is built in the server's order, without data: a tensor knows its operation, extents, strides, sources.
`buffer_bytes` then walks it as the server's allocator does: inputs first, every result into the smallest free
block that holds it or in place of a source that nobody needs any more, freed after its last use.
"""

from fractions import Fraction
from math import prod

from pylucebox.formats.gguf_types import align

ALIGNMENT = 32  # of the CPU's buffers
F32, F16, I32, I64 = 4, 2, 4, 8  # bytes of a value
IN_PLACE = frozenset(
    {"add", "mul", "div", "scale", "unary", "sqrt", "fill", "rope", "rms_norm", "clamp", "soft_max"}
)


class Tensor:
    """One tensor. shape: extents, fastest first; strides in bytes. root: what a view looks into, itself else.

    stored: lies in memory of its own (weights, caches), not in the compute buffer.
    """

    __slots__ = (
        "is_output",
        "is_view",
        "operation",
        "root",
        "shape",
        "sources",
        "stored",
        "strides",
        "width",
    )

    def __init__(
        self,
        shape: tuple[int, ...],
        width: Fraction | int = F32,
        operation: str = "",
        sources: "tuple[Tensor, ...]" = (),
        *,
        view_of: "Tensor | None" = None,
        strides: tuple[Fraction | int, ...] | None = None,
        stored: bool = False,
    ) -> None:
        self.shape = (*shape, 1, 1, 1)[:4]
        self.width = width
        self.operation = operation
        self.sources = sources
        self.is_view = view_of is not None
        self.is_output = False  # read after the graph's end: never freed
        self.root: Tensor = view_of.root if view_of else self
        self.stored: bool = self.root.stored if view_of else stored
        self.strides = strides or dense_strides(self.shape, width)

    @property
    def size_bytes(self) -> int:
        return align(int(prod(self.shape) * self.width), ALIGNMENT)

    def like(self, other: "Tensor") -> bool:
        """Whether both have the same layout, so that one can be written over the other."""
        return (self.shape, self.width, self.strides) == (other.shape, other.width, other.strides)


def dense_strides(shape: tuple[int, ...], width: Fraction | int) -> tuple[Fraction | int, ...]:
    """Return the strides of a tensor without gaps."""
    return tuple(width * prod(shape[:axis]) for axis in range(4))


class Graph:
    """Tensors in the order of their computation. leaves: those that nothing computes, by first use."""

    def __init__(self) -> None:
        self.nodes: list[Tensor] = []
        self.leaves: list[Tensor] = []
        self._seen: set[int] = set()

    def expand(self, result: Tensor) -> Tensor:
        """Add a tensor and, before it, everything it is made from that is not there yet."""
        stack = [(result, iter(result.sources))] if id(result) not in self._seen else []
        self._seen.add(id(result))
        while stack:
            tensor, sources = stack[-1]
            source = next((s for s in sources if id(s) not in self._seen), None)
            if source is not None:
                self._seen.add(id(source))
                stack.append((source, iter(source.sources)))
            else:
                stack.pop()
                (self.nodes if tensor.operation else self.leaves).append(tensor)
        return result


def buffer_bytes(graph: Graph) -> int:
    """Return the bytes of the buffer that a graph's inputs and results need."""
    return _Placing(graph).run()


class _Placing:
    """Counts uses, places tensors, frees them."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.memory = _Blocks()
        self.place: dict[int, int] = {}
        self.users: dict[int, int] = {}
        self.views: dict[int, int] = {}

    def run(self) -> int:
        for leaf in self.graph.leaves:
            self._put(leaf)
        for node in self.graph.nodes:
            if node.is_view:
                self.views[id(node.root)] = self.views.get(id(node.root), 0) + 1
            for source in node.sources:
                self.users[id(source)] = self.users.get(id(source), 0) + 1
        for node in self.graph.nodes:
            self._put(node)
            for source in node.sources:
                self._used(source)
        return self.memory.highest

    def _put(self, tensor: Tensor) -> None:
        if tensor.stored or tensor.is_view or id(tensor) in self.place:
            return
        for parent in tensor.sources if tensor.operation in IN_PLACE else ():
            alone = self.users.get(id(parent)) == 1 and not self.views.get(id(parent))
            if alone and not parent.is_output and id(parent) in self.place and tensor.like(parent):
                self.place[id(tensor)] = self.place.pop(id(parent))
                return
        self.place[id(tensor)] = self.memory.take(tensor.size_bytes)

    def _used(self, source: Tensor) -> None:
        self.users[id(source)] -= 1
        if self.users[id(source)] or self.views.get(id(source)):
            return
        if source.is_view:
            root = source.root
            self.views[id(root)] -= 1
            if not self.views[id(root)] and not self.users.get(id(root)):
                self._free(root)
        else:
            self._free(source)

    def _free(self, tensor: Tensor) -> None:
        if not tensor.is_output and (offset := self.place.pop(id(tensor), None)) is not None:
            self.memory.give_back(offset, tensor.size_bytes)


class _Blocks:
    """Free blocks by offset, the last without end."""

    def __init__(self) -> None:
        self.free = [[0, 1 << 62]]
        self.highest = 0

    def take(self, size: int) -> int:
        fitting = [(block[1], -index) for index, block in enumerate(self.free[:-1]) if block[1] >= size]
        index = -min(fitting)[1] if fitting else len(self.free) - 1
        block = self.free[index]
        offset = block[0]
        block[0] += size
        block[1] -= size
        if not block[1]:
            del self.free[index]
        self.highest = max(self.highest, offset + size)
        return offset

    def give_back(self, offset: int, size: int) -> None:
        after = next(i for i, block in enumerate(self.free) if block[0] > offset)
        self.free.insert(after, [offset, size])
        for index in (after, after - 1):  # join with the next, then with the one before
            if index >= 0 and sum(self.free[index]) == self.free[index + 1][0]:
                self.free[index][1] += self.free.pop(index + 1)[1]
