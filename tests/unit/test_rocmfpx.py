"""numpy codecs against the golden vectors: every type, every case, every key, bit for bit."""

import hashlib
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rocmfpx_cases import CODECS, VECTORS, cases, differing_blocks, vectors

from pylucebox.formats.rocmfpx import Codec
from pylucebox.formats.rocmfpx_fit import SCALES

every_type = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)

# Worked examples of the format: blocks of E1, E2 and E2 with importance, dot product and integer sums of E1.
E1 = ((np.arange(32) - 16) / 8).astype(np.float32)
E2 = (0.03 * ((7 * np.arange(32)) % 13 - 6)).astype(np.float32)
E2_IMPORTANCE = np.where(np.arange(32) % 3 == 0, 4, 1).astype(np.float32)
E1_ACTIVATIONS = "082481d0206fb1004f91e0307fc0105fa1f04081d0206fb1004f91e0307fc0105fa1"
EXAMPLES = {
    100: (
        "0f1f1f2e3e3e4d4d5d5c5c6b6b6a79792c2c",
        "3fd24ec35db46ca57b06fa27e03fd24e1212",
        "2ec13db34da45c955b05d916d02ec13d1417",
        (0x40730240, [923, 363]),
    ),
    101: (
        "0f1f1f2e3e3e4d4d5d5c5c6b6b6a79792c",
        "3fd24ec35db46ca57b06fa27e03fd24e12",
        "3fd24ec35db46ca57b06fa27e03fd24e12",
        (0x40730240, [923 + 363]),
    ),
    107: (
        "0000405555aafaff433d",
        "44889911227247882924",
        "44889911227247882924",
        (0x4035C8C0, [0, 222]),
    ),
    104: (
        "ffffdbb6db16401249d2b66d3635",
        "cf63595d87e7b1acaec3f3581b1b",
        "cf63595d87e7b1acaec3f3581b1c",
        (0x4078D5D0, [270, 317]),
    ),
    102: (
        "f0ebb6ecaaa6e86996e4288680401888c23890445998c6792820",
        "7fa12bf4f352aa567ec05fe80afdbc94aa951ff017ba423f0606",
        "3a612772d34aa9456a804ed80afdbc94aa951ff017ba423f0706",
        (0x406C1480, [1353, 1042]),
    ),
    103: (
        "81889098a0a8b0b8c0c8d0d8e0e8f0f80008101820283038404850586068707810",
        "811f813d855ca47bc37fe17f00811f813d855ca47bc37fe17f00811f813d855c01",
        "a40fb31fc32ed23de14df15c00a40fb31fc32ed23de14df15c00a40fb31fc32e02",
        (0x406A1488, [10697 + 4168]),
    ),
}


def test_the_vectors_are_the_ones_of_the_manifest() -> None:
    listed = dict(
        re.findall(r"^\| (\S+\.npz) \| ([0-9a-f]{64}) \|$", (VECTORS / "README.md").read_text(), re.M)
    )
    found = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in VECTORS.glob("*.npz")}
    assert found == listed


@every_type
@pytest.mark.parametrize("key", ["q", "qw"])
def test_encode(codec: type[Codec], key: str) -> None:
    for case in cases(codec):
        got = codec.encode(case.given("x"), case.given("im") if key == "qw" else None)
        assert not differing_blocks(codec, got, case.wanted(key)), case.name


@every_type
def test_decode(codec: type[Codec]) -> None:
    for case in cases(codec):
        assert codec.decode(case.wanted("q")).tobytes() == case.wanted("y").tobytes(), case.name
        digest = hashlib.sha256(codec.decode(case.wanted("qw")).tobytes()).digest()
        assert digest == case.wanted("yw_sha256").tobytes(), case.name


@every_type
def test_dot_products(codec: type[Codec]) -> None:
    for case in cases(codec):
        for rows, wanted in (
            (case.wanted("q"), case.wanted("dot")),
            (case.wanted("qw"), case.wanted("dotw")),
        ):
            got = [[codec.dot_q8_0(row, act) for act in case.given("act_q8_0")] for row in rows]
            assert np.array(got, np.float32).tobytes() == wanted.tobytes(), case.name


@every_type
def test_integer_sums(codec: type[Codec]) -> None:
    for case in cases(codec):
        got = [[codec.group_sums(row, act) for act in case.given("act_q8_0")] for row in case.wanted("q")]
        assert np.array_equal(np.array(got), case.wanted("isum")), case.name


@every_type
def test_dot_product_in_double_from_the_decoded_weights(codec: type[Codec]) -> None:
    for case in cases(codec):
        blocks = case.given("act_q8_0").reshape(2, -1, 34)
        halves = np.ascontiguousarray(blocks[:, :, :2]).view(np.float16).astype(np.float64)
        activations = (halves * blocks[:, :, 2:].view(np.int8)).reshape(2, -1)
        got = codec.decode(case.wanted("q")).astype(np.float64) @ activations.T
        size = np.abs(codec.decode(case.wanted("q"))).astype(np.float64) @ np.abs(activations.T)
        assert (np.abs(got - case.wanted("dot64")) <= 1e-13 * size).all(), case.name


@every_type
def test_blocks_of_any_bytes(codec: type[Codec]) -> None:
    known = vectors("decode")
    raw = known[f"{codec.name}.raw"]
    assert codec.decode(raw).tobytes() == known[f"{codec.name}.y"].tobytes()
    assert np.array_equal(codec.valid(raw)[:, 0], known[f"{codec.name}.valid"])


def test_scale_bytes() -> None:
    assert SCALES.tobytes() == vectors("decode")["ue4m3"].tobytes()


@every_type
def test_worked_examples(codec: type[Codec]) -> None:
    e1, e2, e2_weighted, (dot_bits, sums) = EXAMPLES[codec.type_id]
    assert codec.encode(E1).tobytes().hex() == e1
    assert codec.encode(E2).tobytes().hex() == e2
    assert codec.encode(E2, E2_IMPORTANCE).tobytes().hex() == e2_weighted
    activations = np.frombuffer(bytes.fromhex(E1_ACTIVATIONS), np.uint8)
    block = np.frombuffer(bytes.fromhex(e1), np.uint8)
    assert int(codec.dot_q8_0(block, activations).view(np.uint32)) == dot_bits
    assert codec.group_sums(block, activations)[0].tolist() == sums


@every_type
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_what_is_written_is_valid_and_canonical(codec: type[Codec], seed: int) -> None:
    x = np.random.default_rng(seed).integers(0, 2**32, (3, 64), np.uint32).view(np.float32)
    data = codec.encode(x)
    assert codec.valid(data).all()
    levels, _ = codec.levels_and_scales(data)
    codes = codec._unpack(data.reshape(-1, codec.block_bytes())[:, : codec.code_bytes()])
    assert np.array_equal(codec.code_by_level[levels.astype(np.intp) + 128], codes)
    assert np.abs(levels.astype(int)).max() <= codec.top


@every_type
def test_weights_on_the_grid_come_back(codec: type[Codec]) -> None:
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 1 << codec.bits, (400, 32)).astype(np.uint8)
    codes[:, :: codec.group] = codec.code_by_level[codec.top + 128]
    scales = rng.integers(8, 0x70, (400, codec.scale_count())).astype(np.uint8)
    x = codec.decode(np.hstack([codec._pack(codes), scales]))
    usual = np.where(np.abs(x) == 128 * SCALES[scales].repeat(codec.group, axis=1), np.float32(0), x)
    assert np.array_equal(codec.decode(codec.encode(usual, np.ones(32, np.float32))), usual)


@every_type
def test_shapes_are_kept_and_parts_do_not_matter(codec: type[Codec]) -> None:
    x = np.random.default_rng(1).normal(0, 0.02, (2, 3, 96)).astype(np.float32)
    data = codec.encode(x)
    assert data.shape == (2, 3, 3 * codec.block_bytes())
    assert np.array_equal(codec.encode(x[1, 2]), data[1, 2])
    assert codec.decode(data).shape == x.shape
    assert codec.encode(x[:, :0]).shape == (2, 0, 3 * codec.block_bytes())


@every_type
def test_refusals(codec: type[Codec]) -> None:
    with pytest.raises(ValueError, match="multiple of 32"):
        codec.encode(np.zeros((2, 40), np.float32))
    with pytest.raises(ValueError, match="float64"):
        codec.encode(np.zeros((2, 32), np.float64))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one value a column"):
        codec.encode(np.zeros((2, 64), np.float32), np.ones(32, np.float32))
    with pytest.raises(ValueError, match=f"blocks of {codec.block_bytes()} bytes"):
        codec.decode(np.zeros(codec.block_bytes() + 1, np.uint8))


def test_an_id_has_one_codec() -> None:
    with pytest.raises(TypeError, match="100"):
        type("Other", (CODECS[0],), {}, type_id=100)
