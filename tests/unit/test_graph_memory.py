"""Placing of tensors in a buffer, on graphs small enough to follow by hand."""

from pylucebox.formats.graph_memory import F16, Graph, Tensor, buffer_bytes
from pylucebox.formats.graph_operations import compute, like, permute, store, view, weight


def bytes_of(*results: Tensor) -> int:
    graph = Graph()
    for result in results:
        graph.expand(result)
    return buffer_bytes(graph)


def test_a_chain_in_place_needs_one_tensor() -> None:
    x = Tensor((64, 4))
    assert bytes_of(like("scale", like("unary", x))) == 1024


def test_a_product_needs_its_source_beside_it() -> None:
    x = Tensor((64, 4))
    assert bytes_of(compute("mul_mat", (32, 4), weight(64, 32), x)) == 1024 + 512


def test_what_is_needed_later_is_not_overwritten() -> None:
    x = Tensor((64, 4))
    first = like("unary", x)
    assert bytes_of(like("add", first, like("scale", x))) == 2 * 1024


def test_freed_blocks_are_joined_and_used_again() -> None:
    a, b = Tensor((64,)), Tensor((64,))
    joined = compute("concat", (128,), a, b)  # a and b are free after this
    wide = compute("concat", (128,), compute("repeat", (64,), joined), compute("repeat", (64,), joined))
    assert bytes_of(wide) == 256 * 2 + 512


def test_views_keep_what_they_look_into() -> None:
    x = compute("repeat", (64, 4), Tensor((64,)))
    turned = compute("cont", (4, 64), permute(x, 1, 0, 2, 3))
    assert bytes_of(turned) == 256 + 1024 + 1024


def test_outputs_stay() -> None:
    x = Tensor((64, 4))
    kept = like("unary", x)
    kept.is_output = True
    assert bytes_of(kept, compute("repeat", (64, 4), like("scale", kept))) == 3 * 1024


def test_stored_tensors_and_stores_into_them_are_free() -> None:
    cache = Tensor((64, 256), F16, stored=True)
    tokens, index = Tensor((64, 4)), Tensor((4,), 8)
    written = store(cache, tokens, index)
    assert bytes_of(written) == 1024 + 32
    assert written.stored and view(written, (64, 256)).stored
