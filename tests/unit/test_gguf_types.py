"""The type table and the header writer, and what they rely on in the gguf package."""

import struct
from pathlib import Path

import gguf
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from pylucebox.formats.gguf_reader import read_header
from pylucebox.formats.gguf_types import (
    QUANTIZATION_VERSION,
    ROCMFPX_TYPES,
    TYPES,
    TYPES_BY_ID,
    UPSTREAM_TYPES,
    TensorInfo,
    ValueType,
    boolean,
    build_header,
    f32,
    f32_array,
    i32_array,
    string,
    string_array,
    u32,
)

KEYS = [
    string("general.name", "näme"),
    u32("a.count", 2**32 - 1),
    f32("a.rate", 0.25),
    boolean("a.flag", True),
    i32_array("a.ids", [-1, 2]),
    f32_array("a.limits", [1.5, 2.5]),
    string_array("a.words", ["x", "", "ß"]),
]


def test_the_package_still_lacks_what_the_table_adds() -> None:
    """Canary: when this fails, gguf knows one of these ids; drop the row, or give the type another id."""
    known = {int(t) for t in GGMLQuantizationType}
    assert not known & {row[1] for row in UPSTREAM_TYPES + ROCMFPX_TYPES}
    assert hasattr(gguf.gguf_writer, "WriterState") and QUANTIZATION_VERSION == 2


def test_package_types_are_taken_over_unchanged() -> None:
    for kind in GGMLQuantizationType:
        assert (TYPES[kind.name].block_values, TYPES[kind.name].block_bytes) == GGML_QUANT_SIZES[kind]
        assert TYPES_BY_ID[int(kind)].name == kind.name


@pytest.mark.parametrize(
    ("name", "type_id", "bits"),
    [
        ("Q4_0_ROCMFP4", 100, 4.5),
        ("Q4_0_ROCMFP4_FAST", 101, 4.25),
        ("Q6_0_ROCMFPX", 102, 6.5),
        ("Q8_0_ROCMFPX", 103, 8.25),
        ("Q3_0_ROCMFPX", 104, 3.5),
        ("Q2_0_ROCMFP2", 107, 2.5),
    ],
)
def test_our_types(name: str, type_id: int, bits: float) -> None:
    kind = TYPES_BY_ID[type_id]
    assert kind.name == name and kind.block_bytes * 8 / kind.block_values == bits


def test_holes_and_removed_ids_are_no_types() -> None:
    assert not {4, 5, 31, 32, 33, 36, 37, 38, 43, 99, 105, 106, 108} & set(TYPES_BY_ID)


def test_row_bytes_refuses_a_broken_block() -> None:
    assert TYPES["MXFP4"].row_bytes(64) == 34
    with pytest.raises(ValueError, match="no multiple of 32"):
        TYPES["MXFP4"].row_bytes(48)


def test_header_reads_back_with_the_package(tmp_path: Path) -> None:
    tensors = [
        TensorInfo("one", (3, 64), TYPES["Q8_0"], 3 * 68, 0),
        TensorInfo("two", (5,), TYPES["F32"], 20, 224),
    ]
    path = tmp_path / "x.gguf"
    path.write_bytes(build_header("deepseek4", KEYS, tensors) + bytes(224 + 32))
    theirs = gguf.GGUFReader(path)
    assert [(t.name, [int(n) for n in t.shape], int(t.tensor_type)) for t in theirs.tensors] == [
        ("one", [64, 3], 8),
        ("two", [5], 0),
    ]
    for entry in KEYS:
        value = theirs.fields[entry.key].contents()
        assert value == entry.value, entry.key
        wanted = entry.type if entry.item_type is None else entry.item_type
        assert int(theirs.fields[entry.key].types[-1]) == int(wanted), entry.key


def test_header_carries_ids_that_the_package_lacks(tmp_path: Path) -> None:
    tensor = TensorInfo("own", (2, 32), TYPES["Q2_0_ROCMFP2"], 20, 0)
    path = tmp_path / "x.gguf"
    path.write_bytes(build_header("deepseek4", [], [tensor]) + bytes(32))
    assert read_header(path).tensors == (tensor,)
    assert struct.pack("<I", 107) in path.read_bytes()


def test_value_types_are_numbered_as_in_the_package() -> None:
    assert {v.name: int(v) for v in ValueType} == {v.name: int(v) for v in gguf.GGUFValueType}
