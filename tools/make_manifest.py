"""Write vendor/llama.cpp.manifest.txt from a source archive: `python tools/make_manifest.py ARCHIVE`.

The manifest names every upstream file that we build from, with its SHA-256. Run it at a bump, then configure
the prepared tree: a file that CMake needs and the rules below drop shows up there.
"""

import argparse
import hashlib
import sys
import tarfile
from pathlib import Path

from pylucebox.source.lock import Lock

ROOT = Path(__file__).resolve().parent.parent

KEEP_FILES = {
    "CMakeLists.txt",
    "LICENSE",
    "scripts/ui-assets.cmake",  # writes the stub ui.h of a build without web UI
    "models/templates/deepseek-ai-DeepSeek-V4.jinja",
    "models/templates/deepseek-ai-DeepSeek-V4-Flash-0731.jinja",
}
KEEP_FOLDERS = ("cmake/", "common/", "ggml/", "include/", "licenses/", "src/", "tools/", "vendor/")
# Below ggml/src and ggml/include everything that belongs to no back-end stays; of the back-ends these do.
BACKENDS = ("cpu", "cuda", "hip", "rpc")
DROP_FOLDERS = (
    "tools/server/bench/",
    "tools/server/tests/",
    "tools/mtmd/legacy-models/",
    "tools/mtmd/tests/",
)
DROP_SUFFIXES = (".md", ".jpeg", ".mp3", ".mp4", ".sh", ".py", ".patch", ".txt.in")
UI_SUFFIXES = (".cmake", ".in", ".txt")


def is_built(path: str) -> bool:
    """Return whether `path` (relative to the llama.cpp root) belongs to the part we build."""
    if path in KEEP_FILES:
        return True
    if not path.startswith(KEEP_FOLDERS) or path.startswith(DROP_FOLDERS):
        return False
    parts = path.split("/")
    if path.startswith("ggml/src/ggml-") and len(parts) > 3:
        return parts[2].removeprefix("ggml-") in BACKENDS and not path.endswith(DROP_SUFFIXES)
    if path.startswith("tools/ui/"):
        return len(parts) == 3 and path.endswith(UI_SUFFIXES)
    return not path.endswith(DROP_SUFFIXES)


def manifest_lines(archive: Path, root: str) -> list[str]:
    """Return the sorted `sha256  path` lines of the part of `archive` that we build."""
    lines = []
    with tarfile.open(archive) as tar:
        for member in tar:
            _, _, inner = member.name.partition("/")
            path = inner.removeprefix(root + "/")
            if member.isfile() and path != inner and is_built(path):
                stream = tar.extractfile(member)
                assert stream is not None
                lines.append((path, hashlib.sha256(stream.read()).hexdigest()))
    return [f"{digest}  {path}" for path, digest in sorted(lines)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    archive = parser.parse_args().archive
    lock = Lock.load(ROOT / "vendor" / "llama.cpp.lock.toml")
    lines = manifest_lines(archive, lock.root)
    (ROOT / "vendor" / "llama.cpp.manifest.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
