"""Receipts: small JSON files with the hashes of a step's inputs; it runs again only when one differs."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pylucebox.core.errors import IntegrityError

CHUNK_BYTES = 1 << 20


def sha256_bytes(data: bytes) -> str:
    """Return the SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def fingerprint(inputs: Mapping[str, Any]) -> str:
    """Return one hash over a JSON-like mapping, independent of key order."""
    return sha256_bytes(json.dumps(inputs, sort_keys=True, separators=(",", ":")).encode())


def read_receipt(path: Path) -> dict[str, Any] | None:
    """Return the receipt at `path`, or None when it is absent or unreadable (the step then runs again)."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def write_receipt(path: Path, content: Mapping[str, Any]) -> None:
    """Write a receipt so that it is complete or absent."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    partial.replace(path)


@dataclass(frozen=True)
class BuildReceipt:
    """A finished build: where its binaries are and which inputs made them.

    id: hash of all inputs; short_id for people. Paths are absolute and follow a moved build folder.
    arch, toolkit, device_code: of the GPU, empty without one: what its compiler was asked for, that compiler,
    pieces of machine code by GPU found in the library. link_stub: the driver was absent, so that the build
    cannot run here. portable: for any processor of this kind. flags: how the device code was compiled.
    """

    id: str
    target: str
    upstream_build: int
    series_sha256: str
    backends: tuple[str, ...]
    compiler: str
    bin_dir: Path
    arch: str = ""
    toolkit: str = ""
    link_stub: bool = False
    portable: bool = False
    flags: Mapping[str, str] = field(default_factory=dict)
    device_code: Mapping[str, int] = field(default_factory=dict)

    @property
    def short_id(self) -> str:
        return self.id[:7]

    @property
    def is_gpu(self) -> bool:
        """Whether the build was made for a GPU."""
        return bool(self.arch)

    @property
    def build_command(self) -> str:
        """The command that makes this build again."""
        return f"lucebox build --target {self.target}{' --portable' if self.portable else ''}"

    @property
    def server_path(self) -> Path:
        return self.bin_dir / "llama-server"

    @property
    def quantize_path(self) -> Path:
        return self.bin_dir / "llama-quantize"

    @property
    def library_path(self) -> Path:
        return self.bin_dir / "liblucebox.so"

    def save(self, build_dir: Path) -> None:
        """Write `receipt.json` into the build folder; the folder's own place is not recorded."""
        content = {k: v for k, v in asdict(self).items() if k != "bin_dir"}
        write_receipt(build_dir / "receipt.json", {**content, "backends": list(self.backends)})

    @classmethod
    def load(cls, build_dir: Path) -> "BuildReceipt | None":
        """Return the receipt of `build_dir`, or None when that folder holds no finished build.

        Raises IntegrityError when the receipt lacks a field.
        """
        content = read_receipt(build_dir / "receipt.json")
        if content is None:
            return None
        try:
            return cls(
                id=str(content["id"]),
                target=str(content["target"]),
                upstream_build=int(content["upstream_build"]),
                series_sha256=str(content["series_sha256"]),
                backends=tuple(content["backends"]),
                compiler=str(content["compiler"]),
                bin_dir=build_dir.resolve() / "bin",
                arch=str(content.get("arch", "")),
                toolkit=str(content.get("toolkit", "")),
                link_stub=bool(content.get("link_stub")),
                portable=bool(content.get("portable")),
                flags=dict(content.get("flags", {})),
                device_code=dict(content.get("device_code", {})),
            )
        except (KeyError, TypeError, ValueError) as bad:
            what = f"field {bad} is missing" if isinstance(bad, KeyError) else f"a field is malformed: {bad}"
            raise IntegrityError(
                f"{build_dir / 'receipt.json'}: {what}",
                hint="run `lucebox build --fresh`",
            ) from bad
