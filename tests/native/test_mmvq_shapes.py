"""Launch shapes of Q8_0 and MXFP4 products on Hopper, computed by the function that launches them.

Speed is a committed result, not a test, and equal columns need a GPU (test-lucebox-gpu-columns). What can be
tested anywhere: that blocks hold exactly the rows there are, and that a thread has several loads under way.
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import lacking

from pylucebox.core import processes
from pylucebox.core.paths import Layout

SMS = 132  # of an H200
WARP = 32
BLOCK_WEIGHTS = 32
LEAST_BYTES = 16  # that a thread loads in two or more pieces; upstream's shape leaves it with 8

# Rows, columns and matrices at a time of DeepSeek-V4-Flash's products.
PRODUCTS = {
    "q_b": (32768, 1024, 1),
    "q_a": (1024, 4096, 1),
    "kv": (512, 4096, 1),
    "output_a": (1024, 4096, 8),
    "output_b": (4096, 8192, 1),
    "shared gate": (2048, 4096, 1),
    "shared down": (4096, 2048, 1),
    "indexer q_b": (8192, 1024, 1),
    "routed gate": (2048, 4096, 6),
    "routed down": (4096, 2048, 6),
}

PROGRAM = """
#include <cstdint>
#include <cstdio>
{shapes}
int main() {{
    int rows;
    long matrices;
    while (scanf("%d %ld", &rows, &matrices) == 2) {{
        const mmvq_warp_shape s = mmvq_get_warp_shape(rows, matrices, {sms});
        printf("%d %d %d\\n", s.rows, s.warps, s.blocks);
        fflush(stdout);
    }}
}}
"""


@dataclass(frozen=True)
class Shape:
    """rows: of a warp; warps: that share them, or of a block where each has its own; blocks: of a launch."""

    rows: int
    warps: int
    blocks: int
    shared: bool = False

    def bytes_of_thread(self, columns: int, block_bytes: int) -> float:
        threads = WARP * (self.warps if self.shared else 1)
        return self.rows * columns / BLOCK_WEIGHTS * block_bytes / threads


class Shapes:
    """A tree's shapes; upstream's where it has no function for them: a row a block of four warps."""

    def __init__(self, tree: Path, folder: Path) -> None:
        header = tree / "ggml/src/ggml-cuda/mmvq-warp.cuh"
        self._program = folder / "shapes"
        self.known = header.is_file()
        if not self.known:
            return
        text = header.read_text(encoding="utf-8")
        start, end = text.index("struct mmvq_warp_shape"), text.index("template <ggml_type type> struct")
        macros = "\n".join(re.findall(r"^#define MMVQ_WARP_M.*$", text, re.MULTILINE))
        source = folder / "shapes.cpp"
        shapes = f"{macros}\n{text[start:end]}"
        source.write_text(PROGRAM.format(shapes=shapes, sms=SMS), encoding="utf-8")
        processes.run(["c++", "-std=c++17", "-o", self._program, source])

    def find(self, products: list[tuple[int, int]]) -> list[Shape]:
        if not self.known:
            return [Shape(1, 4, rows, shared=True) for rows, _ in products]
        with processes.Conversation([self._program], self._program.with_suffix(".log")) as program:
            answers = [program.ask(f"{rows} {matrices}") for rows, matrices in products]
        return [Shape(*map(int, answer.split())) for answer in answers]


@pytest.fixture(scope="module")
def shapes(layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> Shapes:
    if shutil.which("c++") is None:
        lacking("native", "a C++ compiler")
    if not (layout.prepared_dir / "ggml/src/ggml-cuda/mmvq.cu").is_file():
        lacking("native", "the prepared tree (run `lucebox build --target cpu`)")
    return Shapes(layout.prepared_dir, tmp_path_factory.mktemp("shapes"))


@pytest.mark.parametrize(("kind", "block_bytes"), [("Q8_0", 34), ("MXFP4", 17)])
def test_no_product_leaves_a_thread_with_a_single_load(shapes: Shapes, kind: str, block_bytes: int) -> None:
    found = shapes.find([(rows, matrices) for rows, _, matrices in PRODUCTS.values()])
    for (name, (_, columns, _)), shape in zip(PRODUCTS.items(), found, strict=True):
        loaded = shape.bytes_of_thread(columns, block_bytes)
        assert loaded > LEAST_BYTES, f"{name} in {kind}: a thread loads {loaded:.1f} bytes"


def test_blocks_hold_exactly_the_rows(shapes: Shapes) -> None:
    if not shapes.known:
        pytest.fail("the tree has no shapes of its own for Hopper")
    products = [
        (rows, matrices) for rows in (*range(1, 70), 3166, 3168, 3169, 32768) for matrices in (1, 6, 64)
    ]
    for (rows, _), shape in zip(products, shapes.find(products), strict=True):
        assert shape.rows * shape.warps * shape.blocks == rows
        assert 1 <= shape.rows <= 2
        assert 1 <= shape.warps <= 4


def test_few_rows_are_spread_over_the_device(shapes: Shapes) -> None:
    few, many = shapes.find([(1024, 1), (4096, 1)])
    assert (few.rows, many.rows) == (1, 2)
