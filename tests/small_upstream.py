"""A made-up upstream of five files with lock, manifest, archive and series: the pipeline in milliseconds."""

import io
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

from pylucebox.core.paths import Layout
from pylucebox.core.receipts import sha256_bytes

GUARDED = (
    "int call(void) {\n#if defined(GUARD)\n    return guarded();\n#else\n    return plain();\n#endif\n}\n"
)
PLAIN = "int call(void) {\n    return plain();\n}\n"
FILES = {
    "CMakeLists.txt": "project(small)\nadd_library(small src/a.c)\n",
    "src/a.c": "int a(void) {\n    return 1;\n}\n",
    "src/b.c": "int b(void) {\n    return 2;\n}\n",
    "src/old.c": "int old;\n",
    "vendor/call.h": GUARDED,
}
EXTRA = {"docs/readme.md": "not built\n", "../../escape.txt": "outside\n"}
ONE_FORM = """Description: bring vendor/call.h to one form
Class: fix
Origin: vendor
Upstream-Status: Inappropriate [undoes a packager's change]
Tests: none
Fails-Without: none: the file keeps its guard
Last-Update: 2026-12-01
---
--- a/vendor/call.h
+++ b/vendor/call.h
@@ -1,7 +1,3 @@
 int call(void) {
-#if defined(GUARD)
-    return guarded();
-#else
     return plain();
-#endif
 }
"""
HOOK = """Description: register ours
Class: hook
Origin: vendor
Upstream-Status: Inappropriate [ours]
Tests: none
Last-Update: 2026-12-01
---
diff --git a/src/a.c b/src/a.c
--- a/src/a.c
+++ b/src/a.c
@@ -1,3 +1,3 @@
 int a(void) {
-    return 1;
+    return 10;
 }
diff --git a/src/old.c b/src/old.c
deleted file mode 100644
--- a/src/old.c
+++ /dev/null
@@ -1 +0,0 @@
-int old;
diff --git a/src/new.c b/src/new.c
new file mode 100644
--- /dev/null
+++ b/src/new.c
@@ -0,0 +1 @@
+int fresh;
"""
TOP = "small-1.0"
ROOT = "thirdparty/small"


def make_archive(path: Path, files: dict[str, str]) -> None:
    """Write a .tar.gz that holds `files` below TOP/ROOT."""
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"{TOP}/{ROOT}/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))


def make_layout(home: Path, *, is_checkout: bool = True) -> Layout:
    """Write everything below `home`, the archive as home/small-1.0.tar.gz, and return its layout."""
    vendor, patches = home / "vendor", home / "ggml_patches"
    (patches / "overlay" / "src").mkdir(parents=True)
    vendor.mkdir()
    archive = home / "small-1.0.tar.gz"
    make_archive(archive, {**FILES, **EXTRA})
    lines = [f"{sha256_bytes(text.encode())}  {name}" for name, text in sorted(FILES.items())]
    (vendor / "llama.cpp.manifest.txt").write_text("\n".join(lines) + "\n")
    write_lock(vendor / "llama.cpp.lock.toml", archive)
    (patches / "0001-vendor-one-form.patch").write_text(ONE_FORM)
    (patches / "0002-small-register.patch").write_text(HOOK)
    (patches / "series").write_text("# one form\n0001-vendor-one-form.patch\n\n0002-small-register.patch\n")
    (patches / "overlay" / "src" / "ours.c").write_text("int ours;\n")
    return Layout(
        is_checkout=is_checkout,
        vendor_dir=vendor,
        patches_dir=patches,
        work_dir=vendor,
        build_root=home / "build",
        cache_dir=home / "cache",
    )


def write_lock(path: Path, archive: Path, root: str = ROOT) -> None:
    """Write a lock that names `archive`."""
    data = archive.read_bytes()
    forms = "".join(
        f'[[deviation.form]]\norigin = "{origin}"\nsha256 = "{sha256_bytes(text.encode())}"\n'
        for origin, text in (("archive", GUARDED), ("tag", PLAIN))
    )
    path.write_text(
        f'[upstream]\nbuild = 7\ntag = "b7"\nlicence = "MIT"\n'
        f'[archive]\nname = "small"\nversion = "1.0"\nfilename = "{archive.name}"\n'
        f'sha256 = "{sha256_bytes(data)}"\nsize_bytes = {len(data)}\nroot = "{root}"\n'
        f'[[deviation]]\npath = "vendor/call.h"\nreason = "packager"\npatch = "0001-vendor-one-form.patch"\n'
        f'result = "{sha256_bytes(PLAIN.encode())}"\n{forms}'
    )


def make_folder(home: Path, files: dict[str, str] = FILES) -> Path:
    """Write `files` as a source folder and return it."""
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    return home


def moved(layout: Layout, home: Path, new_home: Path) -> Layout:
    """Move everything below `home` to `new_home` and return the layout there."""
    shutil.move(home, new_home)
    swap = {
        name: new_home / getattr(layout, name).relative_to(home)
        for name in ("vendor_dir", "patches_dir", "work_dir", "build_root", "cache_dir")
    }
    return replace(layout, **swap)
