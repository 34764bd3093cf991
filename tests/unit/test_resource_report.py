"""The compilers' reports on kernels, read from samples that were recorded of planted_kernels.cu."""

from pathlib import Path

import pytest

from pylucebox.core.processes import Output
from pylucebox.native import resource_report
from pylucebox.native.resource_report import (
    demangle,
    parse_instructions,
    parse_metadata,
    parse_ptxas,
    parse_remarks,
)

SAMPLES = Path(__file__).parents[1] / "vectors/device-code"
CLEAN, LDS = "_Z21rocmfpx_planted_cleanPji", "_Z19rocmfpx_planted_ldsPf"
SCRATCH, STACK = "_Z23rocmfpx_planted_scratchPfi", "_Z21rocmfpx_planted_stackPi"
COMMON = ["symbol", "arch", "vgprs", "vgpr_spills", "sgpr_spills", "scratch_bytes", "lds_bytes", "faults"]
SPILLS, UPSTREAM = "_Z22rocmfpx_planted_spillsILi200EEvPf", "_Z16planted_upstreamPfi"


def sample(name: str) -> str:
    return (SAMPLES / name).read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def no_demangler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names as they are linked, so that a machine's tools change nothing."""
    monkeypatch.setattr(resource_report, "DEMANGLERS", ())


def test_metadata() -> None:
    kernels = {kernel.symbol: kernel for kernel in parse_metadata(sample("planted-gfx1151.s"))}
    assert list(kernels) == [CLEAN, SCRATCH, SPILLS, STACK, LDS, UPSTREAM]
    assert {(k.arch, k.wavefront_size, k.max_flat_workgroup) for k in kernels.values()} == {
        ("gfx1151", 32, 1024)
    }
    clean, spills = kernels[CLEAN], kernels[SPILLS]
    assert (clean.vgprs, clean.sgprs, clean.lds_bytes, clean.occupancy, clean.faults) == (3, 6, 0, 16, ())
    assert (spills.vgprs, spills.vgpr_spills, spills.scratch_bytes) == (192, 21, 88)
    assert spills.faults == ("88 bytes of scratch", "21 VGPRs spilled")
    assert kernels[SCRATCH].faults == ("272 bytes of scratch",)
    assert kernels[STACK].dynamic_stack and kernels[STACK].faults[-1] == "dynamic stack"
    assert kernels[LDS].lds_bytes == 128 and not kernels[LDS].faults


def test_remarks_say_the_same_as_the_metadata() -> None:
    remarks = parse_remarks(sample("planted-gfx1151.remarks"), "gfx1151")
    metadata = parse_metadata(sample("planted-gfx1151.s"))
    for ours, theirs in zip([r for r in remarks if r.symbol[:2] == "_Z"], metadata, strict=True):
        for field in COMMON:
            assert getattr(ours, field) == getattr(theirs, field), (ours.symbol, field)
    assert [(r.occupancy, r.source) for r in remarks[:3]] == [
        (16, "planted_kernels.cu:7"),
        (16, "planted_kernels.cu:21"),
        (8, "planted_kernels.cu:35"),
    ]


def test_remarks_between_other_lines_of_a_log() -> None:
    lines = sample("planted-gfx1151.remarks").splitlines()[:9]
    log = "\n".join(
        ["[1/2] Building HIP object x.o", *lines, "   21 | int n) {", "warning: 1 warning generated"]
    )
    assert [kernel.symbol for kernel in parse_remarks(log)] == [CLEAN]


@pytest.mark.parametrize("absent", ["vgpr_count", "private_segment_fixed_size", "vgpr_spill_count"])
def test_metadata_without_a_field_is_no_clean_report(absent: str) -> None:
    text = "\n".join(line for line in sample("planted-gfx1151.s").splitlines() if f".{absent}:" not in line)
    with pytest.raises(ValueError, match=f"{CLEAN}: no '.{absent}'"):
        parse_metadata(text)


@pytest.mark.parametrize("absent", ["VGPRs Spill", "ScratchSize", "Dynamic Stack"])
def test_remarks_without_a_field_are_no_clean_report(absent: str) -> None:
    text = "\n".join(line for line in sample("planted-gfx1151.remarks").splitlines() if absent not in line)
    with pytest.raises(ValueError, match=f"{CLEAN}: no '{absent}'"):
        parse_remarks(text)


def test_text_without_kernels() -> None:
    assert parse_metadata("\t.text\n") == parse_remarks("ninja: no work to do.\n") == parse_ptxas("") == ()


def test_instructions() -> None:
    found = parse_instructions(sample("planted-gfx1151.s"))
    assert list(found) == [CLEAN, LDS]
    clean = found[CLEAN]
    assert clean.counts["v_perm_b32"] == 1 and clean.counts["s_load_b32"] == 2
    assert not [mnemonic for mnemonic in clean.counts if mnemonic.startswith(".")]
    assert (clean.valu, clean.inner_loops) == (4, {"BB0_2": 2})
    assert found[LDS].counts["ds_store_b32"] == 1 and not found[LDS].inner_loops


def test_instructions_of_nested_loops_and_dual_issues() -> None:
    asm = """\
two:                                    ; @two
; %bb.0:
	v_mov_b32_e32 v1, 0
.LBB0_1:                                ; =>This Loop Header: Depth=1
                                        ;     Child Loop BB0_2 Depth 2
	v_mov_b32_e32 v2, 0
.LBB0_2:                                ;   Parent Loop BB0_1 Depth=1
                                        ; =>  This Inner Loop Header: Depth=2
	v_dual_add_f32 v0, v1, v2 :: v_dual_mul_f32 v3, v4, v5
	s_cbranch_vccnz .LBB0_4
; %bb.3:                                ;   in Loop: Header=BB0_2 Depth=2
	v_add_f32_e32 v0, v1, v2
.LBB0_4:                                ;   in Loop: Header=BB0_1 Depth=1
	v_sub_f32_e32 v0, v1, v2
.LBB0_5:
	s_endpgm
.Lfunc_end0:
"""
    found = parse_instructions(asm)["two"]
    assert (found.valu, found.inner_loops) == (6, {"BB0_2": 3})
    assert found.counts["v_dual_mul_f32"] == 1


def test_ptxas() -> None:
    kernels = {kernel.symbol: kernel for kernel in parse_ptxas(sample("planted-sm_90a.ptxas"))}
    assert list(kernels) == [UPSTREAM, LDS, STACK, SPILLS, SCRATCH, CLEAN]
    assert {kernel.arch for kernel in kernels.values()} == {"sm_90a"}
    spills = kernels[SPILLS]
    assert (spills.registers, spills.stack_bytes, spills.shared_bytes) == (64, 1016, 0)
    assert (spills.spill_store_bytes, spills.spill_load_bytes) == (1228, 1228)
    assert spills.faults == ("1228 bytes spilled, 1228 read back",)
    assert kernels[LDS].shared_bytes == 128 and kernels[CLEAN].registers == 10
    assert not any(kernel.faults for symbol, kernel in kernels.items() if symbol != SPILLS)


def test_ptxas_without_registers_is_no_clean_report() -> None:
    with pytest.raises(ValueError, match=f"{UPSTREAM}: no register count"):
        parse_ptxas(sample("planted-sm_90a.ptxas").replace("Used 80 registers", ""))


def test_names_are_demangled_in_calls_of_bearable_length(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def answer(argv: list[str], **_: object) -> Output:
        calls.append(len(argv) - 1)
        return Output(tuple(f"name of {symbol}" for symbol in argv[1:]))

    monkeypatch.setattr(resource_report, "DEMANGLERS", ("filter",))
    monkeypatch.setattr(resource_report.shutil, "which", lambda _: "/usr/bin/filter")
    monkeypatch.setattr(resource_report.processes, "run", answer)
    symbols = [f"_Z{i}" for i in range(1000)]
    names = demangle([*symbols, "plain"])
    assert calls == [400, 400, 200]
    assert names["_Z7"] == "name of _Z7" and names["plain"] == "plain"
