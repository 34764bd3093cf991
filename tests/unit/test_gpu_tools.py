"""tools/gpu_pack.py and tools/gpu_smoke.py: what goes into a pack, and what a smoke test notices."""

import importlib.util
import json
import struct
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest
from fake_toolkits import program

from pylucebox.core.errors import BuildError, IntegrityError, RequestError
from pylucebox.core.receipts import BuildReceipt
from pylucebox.native.dynamic import read_dynamic

TOOLS = Path(__file__).parents[2] / "tools"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


pack_tool, smoke_tool = load("gpu_pack"), load("gpu_smoke")


def library(path: Path, soname: str = "", needed: tuple[str, ...] = (), runpath: str = "$ORIGIN") -> Path:
    """Compile an empty library that asks the dynamic linker for all this."""
    path.parent.mkdir(parents=True, exist_ok=True)
    others = []
    for name in needed:
        other = path.parent / "link" / name
        other.parent.mkdir(exist_ok=True)
        subprocess.run(
            ["cc", "-shared", f"-Wl,-soname,{name}", "-o", other, "-x", "c", "/dev/null"], check=True
        )
        others.append(str(other))
    words = [
        "cc",
        "-shared",
        "-o",
        str(path),
        "-x",
        "c",
        "/dev/null",
        "-x",
        "none",
        "-Wl,--no-as-needed",
        *others,
    ]
    words += [f"-Wl,-soname,{soname}"] if soname else []
    words += ["-Wl,--enable-new-dtags", f"-Wl,-rpath,{runpath}"] if runpath else []
    subprocess.run(words, check=True)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A build folder with one program, one library under three names and a receipt."""
    home = tmp_path / "build/sm_90"
    library(home / "bin/libggml.so.0.1", "libggml.so.0")
    (home / "bin/libggml.so.0").symlink_to("libggml.so.0.1")
    (home / "bin/libggml.so").symlink_to("libggml.so.0")
    library(home / "bin/llama-bench", needed=("libggml.so.0",))
    receipt(home).save(home)
    return home


def receipt(home: Path, portable: bool = True) -> BuildReceipt:
    cuda = ("cpu", "rpc", "cuda")
    return BuildReceipt("ab" * 32, "sm_90", 7, "s", cuda, "c++", home / "bin", "90a", portable=portable)


def test_dynamic_sections_are_read(tmp_path: Path) -> None:
    path = library(tmp_path / "x.so", "libx.so.3", ("libggml.so.0",), "$ORIGIN:/opt/cuda")
    found = read_dynamic(path)
    assert found.soname == "libx.so.3" and "libggml.so.0" in found.needed
    assert found.runpath == "$ORIGIN:/opt/cuda"


def test_a_pack_holds_each_file_once_with_its_hash(folder: Path, tmp_path: Path) -> None:
    out, model = tmp_path / "pack.tar.xz", tmp_path / "m.gguf"
    model.write_bytes(b"model")
    count, size = pack_tool.pack(receipt(folder), folder, out, [model])
    assert size == out.stat().st_size and not list(tmp_path.glob("*.partial"))
    with tarfile.open(out) as tar:
        names = set(tar.getnames())
        tar.extractall(tmp_path / "un", filter="data")
    wanted = {"libggml.so.0", "llama-bench", "m.gguf", "receipt.json", "manifest.json", "gpu_smoke.py"}
    assert names - {"fallback/libgomp.so.1"} == wanted and count == len(names)
    result: dict[str, object] = {"problems": []}
    smoke_tool.check_files(tmp_path / "un", result)
    assert result["problems"] == []
    (tmp_path / "un/m.gguf").write_bytes(b"other")
    (tmp_path / "un/llama-bench").unlink()
    smoke_tool.check_files(tmp_path / "un", result)
    assert result["problems"] == ["llama-bench: missing", "m.gguf: not the file that was packed"]


def test_a_build_for_this_processor_is_not_packed(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="for this very processor") as caught:
        pack_tool.pack(receipt(folder, portable=False), folder, tmp_path / "x", [])
    assert caught.value.hint == "lucebox build --target sm_90 --portable"


def test_a_program_tied_to_its_folder_is_not_packed(folder: Path, tmp_path: Path) -> None:
    library(folder / "bin/llama-server", needed=("libggml.so.0",), runpath="/home/me/build/bin")
    with pytest.raises(IntegrityError, match="llama-server: looks for its libraries in '/home/me/build/bin'"):
        pack_tool.pack(receipt(folder), folder, tmp_path / "x", [])


def test_the_toolkits_libraries_are_found_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack/libggml-cuda.so.0").write_bytes(b"\0libcublas.so.77\0libcudart.so.77\0libc.so.6\0")
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda/libcublas.so.77").touch()
    (tmp_path / "cuda/libcublasLt.so.77").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "cuda"))
    result: dict[str, object] = {"problems": []}
    env = smoke_tool.environment(tmp_path / "pack", result)
    assert env["LD_LIBRARY_PATH"].startswith(f"{tmp_path}/pack:{tmp_path}/cuda")
    assert result["problems"] == ["libcudart.so.77: not found on this machine"]


def test_devices_come_from_the_packed_program(tmp_path: Path) -> None:
    program(
        tmp_path / "llama-bench",
        "echo 'Available devices:'; echo '  CUDA0: NVIDIA H200 (143156 MiB, 1 MiB free)'",
    )
    result: dict[str, object] = {"problems": []}
    smoke_tool.list_devices(tmp_path, {"PATH": "/usr/bin:/bin"}, False, result)
    assert result["devices"] == ["CUDA0: NVIDIA H200 (143156 MiB, 1 MiB free)"] and result["problems"] == []
    program(tmp_path / "llama-bench", "echo 'Available devices:'; echo '  (none)'")
    smoke_tool.list_devices(tmp_path, {"PATH": "/usr/bin:/bin"}, False, result)
    assert result["problems"] == ["no GPU is seen: Available devices: (none)"]


CPU = "load_tensors:   CPU_Mapped model buffer size =    23.97 MiB\n"
GPU = "load_tensors:        CUDA0 model buffer size =    21.50 MiB\n"


@pytest.mark.parametrize(
    ("log", "problems"),
    [
        (f"offloaded 9/9 layers to GPU\n{CPU}{GPU}", []),
        (f"offloaded 9/9 layers to GPU\n{CPU}", ["no weights on a GPU: {'CPU_Mapped': 23.97}"]),
        (f"offloaded 8/9 layers to GPU\n{GPU}", ["layers on the GPU: ['8/9']"]),
        (GPU, ["layers on the GPU: none"]),
    ],
)
def test_the_log_must_show_weights_on_a_gpu(log: str, problems: list[str]) -> None:
    """A build without a GPU says "offloaded 9/9 layers" as well, so that line alone proves nothing."""
    result: dict[str, object] = {"problems": []}
    smoke_tool.check_log(log, False, result)
    assert result["problems"] == problems


def test_a_smoke_test_that_fails_says_so_in_its_result(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    words = [sys.executable, str(TOOLS / "gpu_smoke.py"), "--pack", str(tmp_path), "--out", str(out)]
    assert subprocess.run(words, capture_output=True).returncode == 1
    result = json.loads(out.read_text())
    assert result["ok"] is False and "manifest.json" in result["problems"][0]


def test_a_smoke_test_prints_its_result_where_it_cannot_keep_it(tmp_path: Path) -> None:
    words = [sys.executable, TOOLS / "gpu_smoke.py", "--pack", tmp_path, "--out", tmp_path / "no/r.json"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1 and json.loads(done.stdout)["ok"] is False
    assert done.stderr.startswith("error: --out: ") and done.stderr.count("\n") == 1


def test_a_dynamic_section_that_lies_is_refused(tmp_path: Path) -> None:
    path = library(tmp_path / "x.so", "libx.so.3")
    data = path.read_bytes()
    row = struct.pack("<Q", 14)
    at = data.find(row + data[data.find(row) + 8 : data.find(row) + 16])
    path.write_bytes(data[: at + 8] + struct.pack("<Q", 1 << 40) + data[at + 16 :])
    with pytest.raises(BuildError, match="beyond its strings"):
        read_dynamic(path)
