"""The operations graphs are made of, as sizes: each returns a tensor that knows its sources."""

from collections.abc import Sequence
from fractions import Fraction
from math import prod

from pylucebox.formats.graph_memory import F32, Tensor, dense_strides


def weight(*shape: int) -> Tensor:
    """A stored tensor."""
    return Tensor(shape, stored=True)


def view(of: Tensor, shape: Sequence[int], strides: Sequence[Fraction | int] | None = None) -> Tensor:
    """The memory of a tensor under another shape."""
    full = (*shape, 1, 1, 1)[:4]
    kept = tuple(strides) if strides else dense_strides(full, of.width)
    return Tensor(full, of.width, "view", (of,), view_of=of, strides=kept)


def rows(of: Tensor, width: int, count: int) -> Tensor:
    """A view of the first values of each row."""
    return view(of, (width, count), (of.width, of.strides[1], of.strides[1] * count, of.strides[1] * count))


def permute(of: Tensor, *axes: int) -> Tensor:
    """A view with axes moved: axis i of the tensor becomes axis axes[i]."""
    shape = [1] * 4
    strides: list[Fraction | int] = [0] * 4
    for axis, target in enumerate(axes):
        shape[target], strides[target] = of.shape[axis], of.strides[axis]
    return view(of, shape, strides)


def compute(operation: str, shape: Sequence[int], *sources: Tensor, width: Fraction | int = F32) -> Tensor:
    """A result of this shape."""
    return Tensor(tuple(shape), width, operation, sources)


def like(operation: str, first: Tensor, *others: Tensor) -> Tensor:
    """A result shaped like the first source."""
    return Tensor(first.shape, first.width, operation, (first, *others))


def matmul(rows_out: int, x: Tensor) -> Tensor:
    """A weight of so many rows times x."""
    return compute("mul_mat", (rows_out, *x.shape[1:]), weight(x.shape[0], rows_out), x)


def norm(x: Tensor) -> Tensor:
    """RMS norm with a weight."""
    return like("mul", like("rms_norm", x), weight(x.shape[0]))


def store(cache: Tensor, values: Tensor, indices: Tensor) -> Tensor:
    """Rows written into a cache: a view of it."""
    return Tensor(cache.shape, cache.width, "set_rows", (values, indices, cache), view_of=cache)


def rotate(x: Tensor, rotation: Tensor | None) -> Tensor:
    """x times a Hadamard matrix, block by block; x itself without one."""
    if rotation is None:
        return x
    flat = view(x, (rotation.shape[0], prod(x.shape) // rotation.shape[0]))
    return view(Tensor(flat.shape, F32, "mul_mat", (rotation, flat)), x.shape)
