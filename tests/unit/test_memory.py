"""What devices offer, read from made-up /proc and /sys trees; the server's answer as a demand."""

from pathlib import Path

import pytest

from pylucebox.runtime.memory import available_bytes, offered_by_device, parse_answer

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n")
    return tmp_path


def add_card(root: Path, number: int, **sizes: int) -> None:
    folder = root / f"sys/class/drm/card{number}/device"
    folder.mkdir(parents=True)
    for name, value in sizes.items():
        (folder / f"mem_info_{name}").write_text(f"{value}\n")


def test_the_host_offers_what_is_available(machine: Path) -> None:
    assert available_bytes(machine) == offered_by_device("host", 1, 2, machine) == 4 * GIB
    assert available_bytes(machine / "absent") is None


def test_an_apu_offers_vram_and_gtt(machine: Path) -> None:
    assert offered_by_device("ROCm0", 5, 9, machine) == 5
    add_card(machine, 0, vram_total=GIB, vram_used=GIB // 2, gtt_total=60 * GIB, gtt_used=4 * GIB)
    assert offered_by_device("ROCm0", 5, 9, machine) == 56 * GIB + GIB // 2
    assert offered_by_device("CUDA0", 5, 9, machine) == 5


def test_a_card_of_its_own_offers_what_its_driver_says(machine: Path) -> None:
    add_card(machine, 0, vram_total=16 * GIB, vram_used=0, gtt_total=8 * GIB, gtt_used=0)
    assert offered_by_device("ROCm0", 5, 9, machine) == 5


def test_two_cards_are_not_guessed_at(machine: Path) -> None:
    for number in (0, 1):
        add_card(machine, number, vram_total=GIB, vram_used=0, gtt_total=60 * GIB, gtt_used=0)
    assert offered_by_device("ROCm0", 5, 9, machine) == 5
    assert offered_by_device("ROCm1", 0, 0, machine) is None


def test_an_answer(machine: Path) -> None:
    role = {"model": 3 * GIB, "context": GIB, "compute": 7}
    places = {
        "CUDA0": {"free": 4 * GIB, "total": 8 * GIB, "target": role},
        "host": {"free": 0, "total": 0, "target": role, "drafter": {**role, "model": 0}},
    }
    demand = parse_answer({"n_ctx": 8192, "n_ctx_seq": 4096, "places": places}, machine)
    device, host = demand.places
    assert (device.needed_bytes, device.offered_bytes, device.fits) == (4 * GIB + 7, 4 * GIB, False)
    assert host.drafter.total_bytes == GIB + 7 and host.offered_bytes == 4 * GIB and not host.fits
    assert demand.needed_bytes == 9 * GIB + 21 and demand.context_tokens == 4096
    assert [place.name for place in demand.overcommitted] == ["CUDA0", "host"]
