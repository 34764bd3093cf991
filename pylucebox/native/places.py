"""Where toolkits are looked for on this machine."""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Places:
    """The folders and variables of a search; tests give their own. packages: site-packages folders."""

    env: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[Path, ...] = ()
    prefixes: tuple[Path, ...] = ()  # of Python environments, into which a toolkit may have been unpacked
    opt: Path = Path("/opt")
    local: Path = Path("/usr/local")
    system: Path = Path("/usr")

    def which(self, name: str) -> Path | None:
        """Return the program `name` on PATH with its links followed, so that its folder is its toolkit's."""
        found = shutil.which(name, path=self.env.get("PATH", ""))
        return Path(found).resolve() if found else None

    def named(self, *variables: str) -> tuple[str, Path] | None:
        """Return the first of `variables` that is set, with its value."""
        return next(((name, Path(self.env[name])) for name in variables if self.env.get(name)), None)

    @property
    def libraries(self) -> tuple[Path, ...]:
        """Where the system keeps shared libraries."""
        return tuple(
            self.system / name
            for name in ("lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "lib", "lib/wsl/lib")
        )


def this_machine() -> Places:
    """Return the places of this process: its environment, its Python's packages and an active venv's."""
    prefixes = list(dict.fromkeys(Path(name) for name in (sys.prefix, os.environ.get("VIRTUAL_ENV")) if name))
    tool = shutil.which("rocm-sdk")  # of an environment that is on PATH without being active
    if tool:
        prefixes.append(Path(tool).resolve().parent.parent)
    found = [Path(name) for name in sys.path if Path(name).name in ("site-packages", "dist-packages")]
    for prefix in prefixes:
        found += sorted(prefix.glob("lib/python3*/site-packages"))
    own = tuple(prefix for prefix in dict.fromkeys(prefixes) if (prefix / "pyvenv.cfg").is_file())
    return Places(env=dict(os.environ), packages=tuple(dict.fromkeys(found)), prefixes=own)
