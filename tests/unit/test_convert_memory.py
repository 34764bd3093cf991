"""The memory a plan states is a bound: measured in a child process on a checkpoint four times as large."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic_checkpoint import DSPARK, Maker, save_checkpoint, small_config

from pylucebox.core.errors import RequestError
from pylucebox.formats.checkpoint import open_checkpoint
from pylucebox.formats.convert import plan_conversion
from pylucebox.formats.ledger import Role

BOUND = 16 << 20
# Few and large tensors: 16 experts of 3 x 1 MiB packed FP4, an embedding and a head of 16 MiB each.
LARGE = {
    "vocab_size": 4096,
    "hidden_size": 2048,
    "moe_intermediate_size": 1024,
    "n_routed_experts": 8,
    "num_hidden_layers": 2,
    "compress_ratios": [0, 4],
    "num_hash_layers": 1,
}
CHILD = """
import json, resource, sys, tracemalloc
from pathlib import Path
from pylucebox.formats.checkpoint import open_checkpoint
from pylucebox.formats.convert import plan_conversion, write_conversion
from pylucebox.formats.ledger import Role

def resident():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

source, recipe, out, bound, trace = sys.argv[1:]
before = resident()
if trace == "1":
    tracemalloc.start()
checkpoint = open_checkpoint(Path(source))
plan = plan_conversion(checkpoint, Role.TARGET, recipe, Path(out), max_memory_bytes=int(bound))
write_conversion(plan)
traced = tracemalloc.get_traced_memory()[1] if trace == "1" else 0
print(json.dumps({"traced": traced, "resident": resident() - before, "stated": plan.peak_memory_bytes}))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = {k: v for k, v in small_config(**LARGE).items() if k not in DSPARK}
    maker = Maker(config)
    maker.target()
    return save_checkpoint(tmp_path_factory.mktemp("large"), config, maker.tensors)


def measure(source: Path, recipe: str, out: Path, trace: bool) -> dict[str, int]:
    words = [sys.executable, "-c", CHILD, str(source), recipe, str(out), str(BOUND), "1" if trace else "0"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    out.unlink()
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("trace", [True, False])
@pytest.mark.parametrize("recipe", ["q8_0", "mxfp4"])
def test_memory_stays_below_the_stated_bound(large: Path, tmp_path: Path, recipe: str, trace: bool) -> None:
    payload = sum(p.stat().st_size for p in large.glob("*.safetensors"))
    assert payload >= 4 * BOUND
    used = measure(large, recipe, tmp_path / "x.gguf", trace)
    assert used["stated"] <= BOUND
    assert used["traced"] <= used["stated"]
    if not trace:
        assert used["resident"] <= used["stated"]


def test_too_small_a_limit_is_refused_before_writing(large: Path, tmp_path: Path) -> None:
    with pytest.raises(
        RequestError, match=r"--max-memory 1048576 bytes is too little: this checkpoint needs"
    ):
        plan_conversion(
            open_checkpoint(large), Role.TARGET, "q8_0", tmp_path / "x.gguf", max_memory_bytes=1 << 20
        )
    assert list(tmp_path.iterdir()) == []
