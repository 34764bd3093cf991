"""llama-quantize knows the file types: it lists them, writes them and labels what it wrote."""

import subprocess
from pathlib import Path

import pytest
from small_model import write_small_model

from pylucebox.core.receipts import BuildReceipt
from pylucebox.formats.gguf_reader import read_header

# File type -> (general.file_type, name of the tensor type that fills most of a large model).
FTYPES = {
    "Q4_0_ROCMFP4": (100, "q4_0_rocmfp4"),
    "Q4_0_ROCMFP4_LEAN": (101, "q4_0_rocmfp4"),
    "Q4_0_ROCMFP4_COHERENT": (102, "q4_0_rocmfp4"),
    "Q4_0_ROCMFP4_FAST": (103, "q4_0_rocmfp4_fast"),
    "Q4_0_ROCMFP4_FAST_COHERENT": (104, "q4_0_rocmfp4_fast"),
    "Q4_0_ROCMFP4_STRIX": (105, "q4_0_rocmfp4_fast"),
    "Q4_0_ROCMFP4_STRIX_LEAN": (106, "q4_0_rocmfp4_fast"),
    "Q6_0_ROCMFPX": (110, "q6_0_rocmfpx"),
    "Q8_0_ROCMFPX": (111, "q8_0_rocmfpx"),
    "Q3_0_ROCMFPX": (112, "q3_0_rocmfpx"),
    "Q2_0_ROCMFP2": (118, "q2_0_rocmfp2"),
    "Q2_0_ROCMFP2_STRIX": (119, "q2_0_rocmfp2"),
}
TYPE_NAMES = sorted({name for _, name in FTYPES.values()})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("model") / "small.gguf")


def quantize(build: BuildReceipt, *words: str | Path) -> str:
    done = subprocess.run([build.quantize_path, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_help_lists_all(build: BuildReceipt) -> None:
    done = subprocess.run([build.quantize_path, "--help"], capture_output=True, text=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    listed = {words[2]: int(words[0]) for words in lines if len(words) > 3 and words[1] == "or"}
    assert {name: (listed.get(name), FTYPES[name][1]) for name in FTYPES} == FTYPES


@pytest.mark.parametrize("ftype", FTYPES)
def test_quantize_writes_it(build: BuildReceipt, model: Path, tmp_path: Path, ftype: str) -> None:
    number, type_name = FTYPES[ftype]
    out = tmp_path / "out.gguf"
    quantize(build, model, out, ftype)
    header = read_header(out)
    assert header.value("general.file_type") == number
    assert type_name in {tensor.type.name.lower() for tensor in header.tensors}


@pytest.mark.parametrize("type_name", TYPE_NAMES)
def test_written_rows_decode_again(build: BuildReceipt, model: Path, tmp_path: Path, type_name: str) -> None:
    """Quantise one tensor by name, then ask for F32: both directions of the traits run."""
    packed, plain = tmp_path / "packed.gguf", tmp_path / "plain.gguf"
    quantize(build, "--tensor-type", f"ffn_up={type_name}", model, packed, "Q8_0")
    types = {tensor.name: tensor.type.name.lower() for tensor in read_header(packed).tensors}
    assert types["blk.0.ffn_up.weight"] == type_name
    assert types["blk.0.ffn_gate.weight"] == "q8_0"
    quantize(build, "--allow-requantize", packed, plain, "F32")
    assert {t.type.name.lower() for t in read_header(plain).tensors} == {"f32"}
