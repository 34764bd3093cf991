"""A drafter that never proposes is reported once, with the reason, and counted."""

from pathlib import Path

import pytest
import requests
from served_pair import command_for, convert_pair, served

from pylucebox.core.errors import ServerError
from pylucebox.core.receipts import BuildReceipt
from pylucebox.runtime.server import Server

SILENT = "the drafter proposed nothing in "


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return convert_pair(tmp_path_factory.mktemp("pair"), "bf16")


def counters(server: Server) -> dict[str, float]:
    lines = requests.get(f"{server.url}/metrics", timeout=60).text.splitlines()
    return {
        name.removeprefix("llamacpp:spec_decode_"): float(value)
        for name, value in (line.split(" ") for line in lines if line.startswith("llamacpp:spec_decode_d"))
    }


@pytest.mark.parametrize(("p_min", "silent"), [("1.0", True), ("0.0", False)])
def test_silence(
    build: BuildReceipt, pair: tuple[Path, Path], tmp_path: Path, p_min: str, silent: bool
) -> None:
    command = command_for(build, *pair, 512, "--spec-draft-p-min", p_min)
    with served(build, command, tmp_path) as server:
        for _ in range(2):
            server.client.complete("In the beginning", n_predict=70, ignore_eos=True, temperature=0)
        found = counters(server)
        log = server.log_path.read_text(errors="replace")
    assert log.count(SILENT) == (1 if silent else 0)
    assert found["drafts_asked_total"] > 0
    assert (found["drafts_empty_total"] == found["drafts_asked_total"]) is silent
    if silent:
        line = next(line for line in log.splitlines() if SILENT in line)
        assert f"{SILENT}64 tokens: asked 64 times" in line and "--spec-draft-p-min 1.0" in line


def without_confidence_head(drafter: Path, copy: Path) -> Path:
    """Copy a drafter whose key then says that it has no confidence head."""
    data = bytearray(drafter.read_bytes())
    key = b"dflash.has_confidence_head"
    value = data.index(key) + len(key) + 4  # behind the type of the value
    assert data[value] == 1
    data[value] = 0
    copy.write_bytes(data)
    return copy


def test_a_drafter_that_cannot_start_is_refused(
    build: BuildReceipt, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """Upstream logs the error and serves without the drafter."""
    headless = without_confidence_head(pair[1], tmp_path / "headless.gguf")
    command = command_for(build, pair[0], headless, 512, "--spec-draft-p-min", "0.5")
    with pytest.raises(ServerError, match="exit 1") as refused, served(build, command, tmp_path / "runs"):
        pass
    assert refused.value.log_path is not None
    assert "no confidence head" in refused.value.log_path.read_text(errors="replace")
