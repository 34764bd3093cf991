"""C codecs against the golden vectors and against numpy, compiled here out of the overlay alone."""

import hashlib
import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from conftest import lacking
from rocmfpx_cases import (
    CODECS,
    EXACT,
    SEARCHED,
    CodecLibrary,
    cases,
    compile_codecs,
    differing_blocks,
    system_compiler,
    vectors,
)

from pylucebox.formats.rocmfpx import Codec
from pylucebox.formats.rocmfpx_fit import SCALE_MAX
from pylucebox.formats.rocmfpx_search import search_scales

every_type = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
X86 = platform.machine() in ("x86_64", "AMD64")
DRIVER = Path(__file__).parent / "rocmfpx_sanitized.c"
ENGINES = {"scalar": 0, "avx2": 1, "avx512": 2}
RANDOM_ROWS = 16, 1024
KINDS = ["gauss", "spread", "outliers", "ties", "bits"]


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    if not system_compiler():
        lacking("native", "a C compiler (cc, gcc or clang)")


@pytest.fixture(scope="module")
def library(compiler: None, tmp_path_factory: pytest.TempPathFactory) -> CodecLibrary:
    out = tmp_path_factory.mktemp("rocmfpx") / "exact.so"
    return CodecLibrary(compile_codecs(out, "-fPIC", "-shared", *EXACT))


def random_weights(kind: str, seed: int, shape: tuple[int, int]) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if kind == "bits":
        return rng.integers(0, 2**32, shape, np.uint32).view(np.float32)
    if kind == "spread":
        return (rng.normal(size=shape) * 10.0 ** rng.uniform(-6, 6, (shape[0], 1))).astype(np.float32)
    if kind == "ties":
        return (rng.integers(-64, 65, shape) * 2.0 ** rng.integers(-12, 3, (shape[0], 1))).astype(np.float32)
    if kind == "outliers":
        return (rng.normal(size=shape) * 10.0 ** rng.uniform(-8, 8, shape)).astype(np.float32)
    return rng.normal(0, 0.02, shape).astype(np.float32)


@every_type
@pytest.mark.parametrize("key", ["q", "qw"])
def test_quantize(library: CodecLibrary, codec: type[Codec], key: str) -> None:
    for case in cases(codec):
        importance = case.given("im") if key == "qw" else None
        for name, engine in ENGINES.items():
            if library.lib.rocmfpx_engine_works(engine):
                got = library.quantize_with(engine, codec, case.given("x"), importance)
                assert not differing_blocks(codec, got, case.wanted(key)), f"{case.name}, {name}"
        got = library.quantize(codec, case.given("x"), importance)
        assert not differing_blocks(codec, got, case.wanted(key)), case.name


@every_type
def test_quantize_row_ref(library: CodecLibrary, codec: type[Codec]) -> None:
    for case in cases(codec):
        got = np.stack([library.quantize_row_ref(codec, row) for row in case.given("x")])
        assert not differing_blocks(codec, got, case.wanted("q")), case.name


@every_type
def test_dequantize(library: CodecLibrary, codec: type[Codec]) -> None:
    for case in cases(codec):
        assert library.dequantize(codec, case.wanted("q")).tobytes() == case.wanted("y").tobytes(), case.name
        digest = hashlib.sha256(library.dequantize(codec, case.wanted("qw")).tobytes()).digest()
        assert digest == case.wanted("yw_sha256").tobytes(), case.name


@every_type
def test_dot_products(library: CodecLibrary, codec: type[Codec]) -> None:
    for case in cases(codec):
        for rows, wanted in (
            (case.wanted("q"), case.wanted("dot")),
            (case.wanted("qw"), case.wanted("dotw")),
        ):
            got = [[library.dot(codec, row, act) for act in case.given("act_q8_0")] for row in rows]
            assert np.array(got, np.float32).tobytes() == wanted.tobytes(), case.name


@every_type
def test_levels_and_scales_of_any_bytes(library: CodecLibrary, codec: type[Codec]) -> None:
    known = vectors("decode")
    raw = known[f"{codec.name}.raw"]
    assert library.dequantize(codec, raw).tobytes() == known[f"{codec.name}.y"].tobytes()
    assert [library.valid(codec, block) for block in raw] == known[f"{codec.name}.valid"].tolist()
    levels = np.stack([library.levels(codec, block) for block in raw])
    assert np.array_equal(levels, codec.levels_and_scales(raw)[0])


@every_type
def test_invalid_scales_and_cut_blocks_are_reported(library: CodecLibrary, codec: type[Codec]) -> None:
    row = codec.encode(np.ones(7 * 32, np.float32))
    assert library.valid(codec, row)
    assert library.valid(codec, row[:0])
    assert not library.valid(codec, row[:-1])
    for at in range(codec.scale_count()):
        for byte in (SCALE_MAX + 1, 0x80, 0xFF):
            bad = row.copy()
            bad.reshape(7, -1)[6, codec.code_bytes() + at] = byte
            assert not library.valid(codec, bad)
            assert not codec.valid(bad).all()


@every_type
@pytest.mark.parametrize("kind", KINDS)
def test_numpy_and_c_agree_on_random_weights(library: CodecLibrary, codec: type[Codec], kind: str) -> None:
    x = random_weights(kind, codec.type_id, RANDOM_ROWS)
    importance = np.abs(random_weights(kind, 7, (1, RANDOM_ROWS[1]))[0])
    for given in (None, importance):
        wanted = library.quantize_with(ENGINES["scalar"], codec, x, given)
        assert not differing_blocks(codec, codec.encode(x, given), wanted)


@every_type
@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "scalar"])
@pytest.mark.parametrize("kind", KINDS)
def test_fast_engines_equal_the_scalar_one(
    library: CodecLibrary, codec: type[Codec], engine: str, kind: str
) -> None:
    if not library.lib.rocmfpx_engine_works(ENGINES[engine]):
        lacking(engine, f"a processor with {engine}")
    x = random_weights(kind, codec.type_id + 1, RANDOM_ROWS)
    importance = np.abs(random_weights(kind, 8, (1, RANDOM_ROWS[1]))[0])
    for given in (None, importance):
        wanted = library.quantize_with(ENGINES["scalar"], codec, x, given)
        got = library.quantize_with(ENGINES[engine], codec, x, given)
        assert not differing_blocks(codec, got, wanted)


@every_type
@pytest.mark.parametrize("kind", KINDS)
def test_numpy_and_c_agree_on_the_search(library: CodecLibrary, codec: type[Codec], kind: str) -> None:
    x = random_weights(kind, codec.type_id + 2, RANDOM_ROWS)
    importance = random_weights(kind, 9, (1, RANDOM_ROWS[1]))[0]
    for given in (None, importance):
        assert not differing_blocks(codec, library.search(codec, x, given), search_scales(codec, x, given))


@every_type
def test_numpy_and_c_agree_on_random_blocks(library: CodecLibrary, codec: type[Codec]) -> None:
    raw = np.random.default_rng(codec.type_id).integers(0, 256, (2000, codec.block_bytes()), np.uint8)
    assert library.dequantize(codec, raw).tobytes() == codec.decode(raw).tobytes()
    assert [library.valid(codec, block) for block in raw] == codec.valid(raw)[:, 0].tolist()


def test_fused_multiply_add_fails_the_vectors(tmp_path: Path) -> None:
    """The vectors have teeth: a build that contracts is caught, for every type that searches for a scale."""
    if X86 and " fma " not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        lacking("native", "a processor with fused multiply-add")
    flags = ["-fPIC", "-shared", "-ffp-contract=fast", *(["-mfma"] if X86 else [])]
    fused = CodecLibrary(compile_codecs(tmp_path / "fused.so", *flags))
    for codec in CODECS:
        traps = {case.name: case for case in cases(codec) if case.name.startswith("near_tie")}
        weighted = traps["near_tie_w1"]
        got = fused.quantize_with(ENGINES["scalar"], codec, weighted.given("x"), weighted.given("im"))
        assert differing_blocks(codec, got, weighted.wanted("qw")), codec.name
        if codec in SEARCHED:
            plain = traps["near_tie"]
            got = fused.quantize_with(ENGINES["scalar"], codec, plain.given("x"))
            assert (got != plain.wanted("q")).any(axis=1).all(), codec.name


def run_driver(argv: list[str]) -> list[list[str]]:
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [int(line[0]) for line in lines] == sorted(codec.type_id for codec in CODECS)
    return lines


def test_clean_under_address_and_undefined_behaviour_checks(tmp_path: Path) -> None:
    flags = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", *EXACT]
    program = compile_codecs(tmp_path / "sanitized", *flags, extra=(DRIVER,))
    for _, blocks, invalid, reported, _ in run_driver([str(program)]):
        assert int(blocks) == 3 * 45 * 4
        assert int(invalid) == int(reported) > 1000


def test_emulated_arm_gives_the_same_bytes(tmp_path: Path) -> None:
    compiler, emulator = map(shutil.which, ("aarch64-linux-gnu-gcc", "qemu-aarch64-static"))
    if not compiler or not emulator:
        lacking("emulation", "aarch64-linux-gnu-gcc and qemu-aarch64-static")
    here = compile_codecs(tmp_path / "here", *EXACT, extra=(DRIVER,))
    arm = compile_codecs(tmp_path / "arm", "-static", *EXACT, extra=(DRIVER,), compiler=compiler)
    assert run_driver([str(emulator), str(arm)]) == run_driver([str(here)])
