"""Random DeepSeek-V4 models, from files and in memory: they load, decode, and repeat."""

import json
import os
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from fixture_maker import make_fixture

from pylucebox.core.receipts import BuildReceipt
from pylucebox.formats.gguf_reader import GgufHeader, read_header

# Steps of a tiny model are so short that threads spend them waiting for each other.
ONE_THREAD = {"OMP_THREAD_LIMIT": "1"}
PROMPT, STEPS = 140, 16  # long enough to complete a block of 128
# F32 end to end, one token at a time against 64 at once: only the order of sums differs.
NMSE_LIMIT = 1e-6

SMALL = "--hidden 256 --ff 256 --vocab 128 --heads 8 --experts 8 --ratios 0,4 --prompt 8 --decode 2 --depth 1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@cache
def model(folder: Path, variant: str) -> Path:
    path = folder / f"{variant}.gguf"
    assert make_fixture.main(["--variant", variant, "--out", str(path)]) == 0
    return path


def logits(build: BuildReceipt, path: Path, folder: Path, ubatch: int) -> np.ndarray:
    """Logits of one sequence, shape (tokens, vocabulary), evaluated `ubatch` tokens at a time."""
    ids, out = folder / "ids.txt", folder / "out.f32"
    ids.write_text(" ".join(str((37 * i + 11) % 128) for i in range(PROMPT + STEPS)) + "\n")
    argv = [build.bin_dir / "lucebox-logits", path, ids, out, "f32", str(ubatch)]
    done = subprocess.run(argv, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return np.fromfile(out, "<f4").reshape(PROMPT + STEPS, -1)


@pytest.mark.parametrize("variant", "ABCD")
def test_variant_decodes(build: BuildReceipt, folder: Path, variant: str) -> None:
    path = model(folder, variant)
    single, batched = logits(build, path, folder, 1), logits(build, path, folder, 64)
    assert single.shape[1] == 128
    assert np.isfinite(single).all() and single.std() > 0.1
    assert np.square(single - batched).mean() / np.square(single).mean() < NMSE_LIMIT
    assert (single.argmax(1) == batched.argmax(1)).all()


def test_rocmfpx_experts_decode(build: BuildReceipt, folder: Path) -> None:
    single = logits(build, model(folder, "E"), folder, 1)
    assert np.isfinite(single).all() and single.std() > 0.1


def test_variants_differ(build: BuildReceipt, folder: Path) -> None:
    """B differs from A in the indexer's choice and the clamp alone: same weights, other logits."""
    a, b = (logits(build, model(folder, v), folder, 64) for v in "AB")
    assert not np.allclose(a, b, atol=1e-3)


def test_models_in_memory(build: BuildReceipt) -> None:
    done = subprocess.run([build.bin_dir / "test-lucebox-random-model"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_header_in_memory(build: BuildReceipt, folder: Path) -> None:
    """The C++ maker's header passes the strict reader and agrees with the Python maker's."""
    path = folder / "memory.gguf"
    program = build.bin_dir / "test-lucebox-random-model"
    subprocess.run([program, "--save", path, "lucebox-small"], check=True)
    ours, theirs = read_header(path), read_header(model(folder, "A"))
    assert kinds(ours) == kinds(theirs)
    # Window only with hash routing; ratio 4 and ratio 128 with score routing.
    for in_memory, in_file in (0, 0), (1, 4), (2, 3):
        assert suffixes(ours, in_memory) == suffixes(theirs, in_file)


def kinds(header: GgufHeader) -> dict[str, object]:
    return {k: (v.type, v.item_type) for k, v in header.keys.items() if k.startswith("deepseek4.")}


def suffixes(header: GgufHeader, layer: int) -> set[str]:
    prefix = f"blk.{layer}."
    return {t.name.removeprefix(prefix) for t in header.tensors if t.name.startswith(prefix)}


def bench(build: BuildReceipt, *words: str, requests: str = "") -> subprocess.CompletedProcess[str]:
    argv = [build.bin_dir / "bench-lucebox-model", *SMALL.split(), *words]
    return subprocess.run(argv, input=requests, capture_output=True, text=True)


def test_bench_lists_without_loading(build: BuildReceipt) -> None:
    done = bench(build, "--list", "--threads", "1")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {(x["case"], x["arm"], x["unit"]) for x in lines} == {
        (case, arm, "tok/s")
        for case in ("decode n=2 threads=1", "prompt n=8 threads=1")
        for arm in ("lucebox", "upstream")
    }
    assert done.stderr == ""


def test_bench_serves(build: BuildReceipt) -> None:
    requests = "decode n=2 threads=1\tlucebox\nprompt n=8 threads=1\tupstream\ndecode n=2\tlucebox\n"
    done = bench(build, "--serve", "--threads", "1", requests=requests)
    assert done.returncode == 0, done.stderr
    first, second, third = (json.loads(line) for line in done.stdout.splitlines())
    assert first["case"] == "decode n=2 threads=1" and first["arm"] == "lucebox" and first["value"] > 0
    assert second["case"] == "prompt n=8 threads=1" and second["arm"] == "upstream" and second["value"] > 0
    assert set(third) == {"error"}


def test_bench_interleaves(build: BuildReceipt) -> None:
    two_arms = ["--arm", "a=f32,f32,f32", "--arm", "b=bf16,bf16,bf16"]
    done = bench(build, "--rounds", "1", "--threads", "1", *two_arms)
    assert done.returncode == 0, done.stderr
    arms = [json.loads(line)["arm"] for line in done.stdout.splitlines()]
    assert "".join(arms) == "abba" * 2


@pytest.mark.parametrize("words", ["--arm x=q9_z,f32,f32", "--arm x=f32", "--colour red", "--seed"])
def test_bench_refuses(build: BuildReceipt, words: str) -> None:
    done = bench(build, *words.split())
    assert done.returncode == 2 and done.stdout == "" and done.stderr
