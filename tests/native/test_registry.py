"""Ids, names, sizes, ops and refusals of the registry, checked by C++ programs and llama-quantize."""

import struct
import subprocess
from pathlib import Path

import pytest
from small_model import write_small_model

from pylucebox.core.receipts import BuildReceipt

HOLES = [4, 31, 43, 105, 106, 108, 250, 2**31]


@pytest.mark.parametrize("program", ["test-lucebox-registry", "test-lucebox-op-support"])
def test_program(build: BuildReceipt, program: str) -> None:
    done = subprocess.run([build.bin_dir / program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def patch_type(path: Path, tensor: str, type_id: int) -> None:
    """Overwrite the type id of one tensor of a GGUF file: it follows name, rank and extents."""
    data = bytearray(path.read_bytes())
    name = tensor.encode()
    at = data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
    rank = struct.unpack_from("<I", data, at)[0]
    struct.pack_into("<I", data, at + 4 + 8 * rank, type_id)
    path.write_bytes(data)


@pytest.mark.parametrize("type_id", HOLES)
def test_unknown_type_is_refused_by_tensor_and_id(build: BuildReceipt, tmp_path: Path, type_id: int) -> None:
    model = write_small_model(tmp_path / "small.gguf")
    patch_type(model, "blk.0.attn_k.weight", type_id)
    out = tmp_path / "out.gguf"
    done = subprocess.run([build.quantize_path, model, out, "Q8_0"], capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "blk.0.attn_k.weight" in said
    assert str(type_id) in said
    assert not out.exists()
