"""The table of build targets. A new target is one row."""

from collections.abc import Mapping
from dataclasses import dataclass, field

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

# Files in bin/ without which a build is not finished.
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


@dataclass(frozen=True)
class Target:
    """One way to build. backends: ggml's names; configure fails when one of them is off afterwards.

    native: machine code for this very CPU, so that a build of another machine is not taken for ours.
    """

    name: str
    summary: str
    backends: tuple[str, ...]
    defines: Mapping[str, str] = field(default_factory=dict)
    native: bool = True

    def cmake_defines(self, build: int, tag: str, series_sha256: str) -> dict[str, str]:
        """Return all -D values, in order, for an upstream build number, tag and patch series."""
        return {
            **COMMON_DEFINES,
            "GGML_NATIVE": "ON" if self.native else "OFF",
            "LLAMA_BUILD_NUMBER": str(build),
            "LLAMA_BUILD_COMMIT": tag,
            "LUCEBOX_SERIES_SHA256": series_sha256,
            **self.defines,
        }


TARGETS = {
    target.name: target
    for target in (
        Target(
            name="cpu",
            summary="this machine's processor; no GPU",
            backends=("cpu", "rpc"),
        ),
    )
}
DEFAULT_TARGET = "cpu"


def find_target(name: str, said_by: str = "") -> Target:
    """Return the target called `name`. Raises RequestError that names the nearest one.

    said_by: where the name comes from, if the user did not type it here.
    """
    if name not in TARGETS:
        where = f"{said_by}: " if said_by else ""
        raise RequestError(
            f"{where}unknown target '{name}'{did_you_mean(name, list(TARGETS))}",
            hint=f"known targets: {', '.join(TARGETS)}",
        )
    return TARGETS[name]
