"""The table of build targets. A new target is one row."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pylucebox.core.errors import RequestError, did_you_mean

# What every target compiles, by ninja's names. The whole upstream tree is several times more.
UPSTREAM_TARGETS = (
    "llama",
    "llama-common",
    "llama-server",
    "llama-quantize",
    "llama-perplexity",
    "llama-imatrix",
    "llama-bench",
    "ggml-rpc-server",
)
OUR_TARGETS = ("lucebox", "lucebox-tests")

# Files in bin/ without which a build is not finished; a GPU target has one more.
PRODUCTS = (
    "llama-server",
    "llama-quantize",
    "llama-perplexity",
    "llama-imatrix",
    "llama-bench",
    "ggml-rpc-server",
    "liblucebox.so",
)

# Same for every target. Nothing may be downloaded while configuring or compiling.
COMMON_DEFINES: Mapping[str, str] = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "ON",
    "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
    "CMAKE_INSTALL_RPATH": "$ORIGIN",
    "LLAMA_BUILD_COMMON": "ON",
    "LLAMA_BUILD_TOOLS": "ON",
    "LLAMA_BUILD_SERVER": "ON",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_LLGUIDANCE": "OFF",
    "GGML_RPC": "ON",
    "GIT_EXE": "OFF",  # ggml would report the commit of whatever repository surrounds it
}


# Back-ends of the targets, and the types whose products only the CPU has kernels for (by ggml-cuda itself).
BACKENDS = ("cpu", "cuda", "hip")
CPU_ONLY_TYPES = frozenset(("tq1_0", "tq2_0"))


@dataclass(frozen=True)
class Target:
    """One way to build. backends: ggml's names; configure fails when one of them is off afterwards.

    arch: what the device compiler is asked for; empty without a GPU. needs: oldest toolkit that knows it.
    native: machine code for this very CPU, so that a build of another machine is not taken for ours.
    disk_bytes: what the build folder takes, measured and rounded up.
    """

    name: str
    summary: str
    backends: tuple[str, ...]
    arch: str = ""
    needs: str = ""
    defines: Mapping[str, str] = field(default_factory=dict)
    native: bool = True
    disk_bytes: int = 1 << 28

    @property
    def device_backend(self) -> str:
        """ "cuda", "hip", or "" when the target has no GPU."""
        return next((name for name in self.backends if name in ("cuda", "hip")), "")

    @property
    def products(self) -> tuple[str, ...]:
        """Files in bin/ without which a build is not finished."""
        device = self.device_backend
        return (*PRODUCTS, f"libggml-{device}.so") if device else PRODUCTS

    def cmake_defines(
        self, build: int, tag: str, series_sha256: str, kit: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Return all -D values, in order, for an upstream build number, tag and patch series.

        kit: what the chosen CUDA toolkit or ROCm adds.
        """
        return {
            **COMMON_DEFINES,
            "GGML_NATIVE": "ON" if self.native else "OFF",
            "LLAMA_BUILD_NUMBER": str(build),
            "LLAMA_BUILD_COMMIT": tag,
            "LUCEBOX_SERIES_SHA256": series_sha256,
            **self.defines,
            **(kit or {}),
        }


def _cuda(name: str, arch: str, summary: str, needs: str = "12.0") -> Target:
    """Return an NVIDIA row. arch with an "a": with what that one generation alone can do."""
    return Target(
        name=name,
        summary=summary,
        backends=("cpu", "rpc", "cuda"),
        arch=arch,
        needs=needs,
        defines={"GGML_CUDA": "ON", "GGML_CUDA_NCCL": "OFF", "CMAKE_CUDA_ARCHITECTURES": f"{arch}-real"},
        disk_bytes=1 << 30,
    )


def _hip(name: str, summary: str) -> Target:
    """Return an AMD row. needs: what upstream accepts; whether the compiler knows `name` is tried."""
    return Target(
        name=name,
        summary=summary,
        backends=("cpu", "rpc", "hip"),
        arch=name,
        needs="6.1",
        defines={"GGML_HIP": "ON", "CMAKE_HIP_ARCHITECTURES": name, "AMDGPU_TARGETS": name},
        disk_bytes=1 << 30,
    )


TARGETS = {
    target.name: target
    for target in (
        Target(name="cpu", summary="this machine's processor; no GPU", backends=("cpu", "rpc")),
        _hip("gfx1151", "AMD Ryzen AI Max, Strix Halo (RDNA 3.5)"),
        _hip("gfx1201", "AMD Radeon RX 9070, AI PRO R9700 (RDNA 4)"),
        _hip("gfx1100", "AMD Radeon RX 7900, PRO W7900 (RDNA 3)"),
        _cuda("sm_80", "80", "NVIDIA A100, A30 (Ampere)"),
        _cuda("sm_86", "86", "NVIDIA RTX 30, A10, A40, RTX A6000 (Ampere)"),
        _cuda("sm_89", "89", "NVIDIA RTX 40, L4, L40S (Ada)"),
        _cuda("sm_90", "90a", "NVIDIA H100, H200, GH200 (Hopper)"),
        _cuda("sm_120", "120a", "NVIDIA RTX 50, RTX PRO 6000 (Blackwell)", needs="12.8"),
    )
}
DEFAULT_TARGET = "cpu"  # where no GPU is found

# What upstream could compile and people ask for, but nothing of ours runs on.
NO_SUCH_TARGET = (
    "vulkan",
    "metal",
    "sycl",
    "opencl",
    "musa",
    "webgpu",
    "openvino",
    "hexagon",
    "kompute",
)
FAMILIES = {"cuda": "sm_", "nvidia": "sm_", "hip": "gfx", "rocm": "gfx", "amd": "gfx"}


def find_target(name: str, said_by: str = "", portable: bool = False) -> Target:
    """Return the target called `name`. Raises RequestError that says what there is instead.

    said_by: where the name comes from, if the user did not type it here. portable: for any processor.
    """
    where = f"{said_by}: " if said_by else ""
    known = f"known targets: {', '.join(TARGETS)}"
    if name in TARGETS:
        return replace(TARGETS[name], native=False) if portable else TARGETS[name]
    if name.lower() in NO_SUCH_TARGET:
        raise RequestError(f"{where}there is no {name.lower()} target yet", hint=known)
    start = FAMILIES.get(name.lower())
    if start:
        rows = ", ".join(target for target in TARGETS if target.startswith(start))
        raise RequestError(f"{where}'{name}' names no one GPU: the targets are {rows}", hint=known)
    raise RequestError(f"{where}unknown target '{name}'{did_you_mean(name, list(TARGETS))}", hint=known)
