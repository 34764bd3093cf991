"""The proof that a library holds code for the asked GPU: real and made-up sections, whole and broken."""

import json
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from fake_toolkits import FATBIN, VECTORS, write_elf

from pylucebox.core.errors import BuildError
from pylucebox.native.device_code import (
    BUNDLE_MAGIC,
    CodeObject,
    cuda_architectures,
    hip_code_objects,
    make_bundle,
    section,
)
from pylucebox.native.kernel_metadata import decode_msgpack, kernel_resources
from pylucebox.native.proof import check_backends, check_device_code, check_flags, check_kernels
from pylucebox.native.targets import Target, find_target

CODE = (VECTORS / "scratch-gfx1151.elf").read_bytes()
TRIPLE = "hipv4-amdgcn-amd-amdhsa--"


def fatbin(*entries: tuple[int, int, int]) -> bytes:
    """Return a fatbin of empty entries: kind, architecture, flags."""
    body = b"".join(
        struct.pack("<HHIQIIHHIIIQ", kind, 0x101, 64, 8, 0, 0, 0, 8, arch, 0, 0, flags) + b"\0" * 24
        for kind, arch, flags in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def packed(bundle: bytes, method: int = 0) -> bytes:
    """Return a compressed bundle as clang writes it."""
    content = zlib.compress(bundle)
    return b"CCOB" + struct.pack("<HHIIQ", 2, method, 24 + len(content), len(bundle), 0) + content


def test_a_real_compressed_fatbin_names_its_gpu() -> None:
    assert cuda_architectures(FATBIN) == {"sm_90a": 1}
    assert cuda_architectures(FATBIN + b"\0" * 24 + FATBIN) == {"sm_90a": 2}


def test_machine_code_and_ptx_are_told_apart() -> None:
    found = cuda_architectures(fatbin((2, 90, 1 << 20), (1, 90, 0), (2, 80, 0), (16, 80, 0)))
    assert found == {"sm_90a": 1, "compute_90": 1, "sm_80": 1}


@pytest.mark.parametrize("cut", [17, 40, 80, len(FATBIN) - 1])
def test_a_fatbin_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(ValueError, match="ends beyond its section"):
        cuda_architectures(FATBIN[:cut])


def test_what_is_no_fatbin_is_refused() -> None:
    with pytest.raises(ValueError, match="no fatbin header at byte 0"):
        cuda_architectures(b"x" * 64)
    with pytest.raises(ValueError, match="entry at byte 16 ends beyond"):
        cuda_architectures(
            struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 64) + struct.pack("<HHIQ", 2, 1, 64, 99) + b"\0" * 48
        )


def test_a_bundle_gives_its_code_objects() -> None:
    bundle = make_bundle(
        {"host-x86_64-unknown-linux-gnu-": b"", f"{TRIPLE}gfx1151": CODE, f"{TRIPLE}gfx90a:xnack+": b"y"}
    )
    objects = list(hip_code_objects(bundle + b"\0" * 4000 + bundle))
    assert [one.arch for one in objects] == ["gfx1151", "gfx90a"] * 2 and objects[0].data == CODE
    assert [one.arch for one in hip_code_objects(packed(bundle) + b"\0" * 8 + bundle)] == [
        "gfx1151",
        "gfx90a",
    ] * 2


def test_a_bundle_that_zstd_packed_needs_its_tool() -> None:
    bundle = make_bundle({f"{TRIPLE}gfx1151": CODE})
    with pytest.raises(ValueError, match="clang-offload-bundler is not found"):
        list(hip_code_objects(packed(bundle, method=1)))
    (one,) = hip_code_objects(packed(bundle, method=1), lambda data: bundle)
    assert one == CodeObject("gfx1151", CODE)


@pytest.mark.parametrize("count", [1, 1 << 20, 1 << 62])
def test_a_broken_bundle_is_refused(count: int) -> None:
    with pytest.raises((ValueError, struct.error)):
        list(
            hip_code_objects(
                BUNDLE_MAGIC + struct.pack("<Q", count) + struct.pack("<QQQ", 0, 1 << 40, 4) + b"abcd"
            )
        )


def test_the_report_in_a_real_code_object() -> None:
    fine, scratch = kernel_resources(CodeObject("gfx1151", CODE))
    assert "rocmfpx_fine" in fine.name and fine.faults == () and (fine.vgprs, fine.wavefront_size) == (2, 32)
    assert "ds4_scratch" in scratch.name and scratch.faults == ("272 bytes of scratch",)


def test_a_code_object_without_a_report_is_refused() -> None:
    with pytest.raises(ValueError, match="without a resource report"):
        kernel_resources(CodeObject("gfx1151", CODE.replace(b"AMDGPU\0", b"OTHERS\0")))
    with pytest.raises(ValueError):
        kernel_resources(CodeObject("gfx1151", CODE[:900]))


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\x05", 5),
        (b"\xff", -1),
        (b"\xcd\x01\x00", 256),
        (b"\xd2\xff\xff\xff\xfe", -2),
        (b"\x82\xa1a\xc3\xa1b\x92\xc0\xcf\0\0\0\x01\0\0\0\0", {"a": True, "b": [None, 1 << 32]}),
        (b"\xde\x00\x01\xd9\x01x\xdc\x00\x01\xcb\x3f\xf0\0\0\0\0\0\0", {"x": [1.0]}),
    ],
)
def test_messagepack(data: bytes, value: object) -> None:
    assert decode_msgpack(data, 0) == (value, len(data))


def library(folder: Path, device: str, content: bytes) -> Path:
    name = ".nv_fatbin" if device == "cuda" else ".hip_fatbin"
    write_elf(folder / f"bin/libggml-{device}.so", name, content)
    return folder


def test_the_asked_gpus_code_is_found(tmp_path: Path) -> None:
    assert check_device_code(find_target("sm_90"), library(tmp_path, "cuda", FATBIN)) == {"sm_90a": 1}
    clean = make_bundle({f"{TRIPLE}gfx1151": CODE.replace(b"ds4", b"xyz")})
    assert check_device_code(find_target("gfx1151"), library(tmp_path, "hip", clean)) == {"gfx1151": 1}
    assert check_device_code(find_target("cpu"), tmp_path) == {}


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("sm_80", FATBIN, "holds no machine code for sm_80, only sm_90a"),
        ("sm_90", fatbin((2, 90, 0)), "holds no machine code for sm_90a, only sm_90"),
        ("sm_90", fatbin((1, 90, 1 << 20)), "holds no machine code for sm_90a, only compute_90a"),
        ("sm_90", b"", "holds no machine code for sm_90a, none at all"),
        ("sm_90", b"nonsense" * 9, "its device code cannot be read"),
        ("gfx1201", make_bundle({f"{TRIPLE}gfx1151": CODE}), "no machine code for gfx1201, only gfx1151"),
        ("gfx1151", b"", "holds no machine code for gfx1151, none at all"),
    ],
)
def test_wrong_or_missing_code_fails_the_build(tmp_path: Path, name: str, content: bytes, line: str) -> None:
    target = find_target(name)
    with pytest.raises(BuildError, match=line) as caught:
        check_device_code(target, library(tmp_path, target.device_backend, content))
    assert caught.value.exit_code == 5


def test_a_kernel_of_ours_that_spills_fails_the_build(tmp_path: Path) -> None:
    bundle = make_bundle({f"{TRIPLE}gfx1151": CODE})
    with pytest.raises(BuildError, match=r"ds4_scratch.* on gfx1151: 272 bytes of scratch") as caught:
        check_device_code(find_target("gfx1151"), library(tmp_path, "hip", bundle))
    assert caught.value.exit_code == 5


def test_wavefronts_of_64_lanes_fail_the_build() -> None:
    (kernel, _) = kernel_resources(CodeObject("gfx1151", CODE))
    check_kernels(Path("lib.so"), [kernel])
    with pytest.raises(BuildError, match="wavefronts of 64 lanes, not 32"):
        check_kernels(Path("lib.so"), [replace(kernel, wavefront_size=64)])


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_bytes(b"text, and more of it")
    with pytest.raises(BuildError, match="not a library that can be read"):
        section(tmp_path / "x.so", ".nv_fatbin")
    (tmp_path / "empty.so").touch()
    with pytest.raises(BuildError, match="not a library that can be read"):
        section(tmp_path / "empty.so", ".nv_fatbin")


def configured(folder: Path, target: Target, **cache: str) -> Path:
    """Write a CMakeCache.txt in which `target` is configured well, except for `cache`."""
    known = {f"GGML_{name.upper()}": "ON" for name in target.backends}
    known["GGML_AVAILABLE_BACKENDS"] = ";".join(f"ggml-{name}" for name in target.backends)
    lines = [f"{name}:STRING={value}" for name, value in {**known, **cache}.items()]
    (folder / "CMakeCache.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("name", ["gfx1151", "sm_90"])
def test_a_configure_that_drops_the_gpu_fails(tmp_path: Path, name: str) -> None:
    target = find_target(name)
    option = f"GGML_{target.device_backend.upper()}"
    check_backends(target, configured(tmp_path, target))
    for cache in ({option: "OFF"}, {option: "0"}, {"GGML_AVAILABLE_BACKENDS": "ggml-cpu;ggml-rpc"}):
        with pytest.raises(
            BuildError, match=f"asked for {option[5:]}, but the build tree has it off"
        ) as caught:
            check_backends(target, configured(tmp_path, target, **cache))
        assert caught.value.exit_code == 5


def commands(folder: Path, *lines: str) -> Path:
    rows = [{"directory": "/", "command": line, "file": line.split()[-1]} for line in lines]
    (folder / "compile_commands.json").write_text(json.dumps(rows))
    return folder


HIP = "clang++ -O3 --offload-arch=gfx1151 -c /src/a.cu"


def test_flags_are_recorded(tmp_path: Path) -> None:
    target = find_target("gfx1151")
    configured(tmp_path, target, GGML_CUDA_FA_ALL_QUANTS="OFF")
    flags = check_flags(target, commands(tmp_path, HIP, "c++ -O2 /src/host.cpp"))
    assert flags["GGML_CUDA_FA_ALL_QUANTS"] == "OFF" and flags["wavefront"] == "32"
    cuda = find_target("sm_90")
    line = 'nvcc -O3 "--generate-code=arch=compute_90a,code=[sm_90a]" -c /src/a.cu'
    assert check_flags(cuda, commands(configured(tmp_path, cuda), line))["optimisation"] == "-O3"
    assert check_flags(find_target("cpu"), tmp_path / "absent") == {}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (HIP.replace("-O3", "-O3 -O1"), "/src/a.cu: compiled with -O1, not -O3"),
        (HIP.replace("-O3", ""), "compiled with no -O, not -O3"),
        (HIP.replace("-O3", "-O3 -mwavefrontsize64"), "compiled with -mwavefrontsize64"),
        (HIP.replace("gfx1151", "gfx1100"), "/src/a.cu: not compiled for gfx1151"),
        ("c++ /src/host.cpp", "names no device file"),
    ],
)
def test_wrong_flags_fail_the_build(tmp_path: Path, line: str, message: str) -> None:
    target = find_target("gfx1151")
    with pytest.raises(BuildError, match=message):
        check_flags(target, commands(configured(tmp_path, target), line))
