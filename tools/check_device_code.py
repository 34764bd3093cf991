"""Compile device code for GPUs that are not here, and read the compilers' reports.

    python tools/check_device_code.py                                  every overlay kernel and header
    python tools/check_device_code.py FILE [--arch gfx1151] [--asm OUT.s]    one file, every kernel shown

Kernels (.cu) and headers (.cuh, each alone) of the overlay are compiled for gfx1151 and gfx1201 with clang,
device code only, at -O3; headers for sm_90a with nvcc too; upstream .cu files that patches touch for gfx1151.
Fails when a file does not compile, when a line of ours draws a warning, when a kernel of ours has scratch,
spills or a dynamic stack, and when a claim of tools/device_code/claims.toml does not hold.
A compiler that cannot be had is named as `not run`; LUCEBOX_REQUIRE=hip,nvcc makes that a failure.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from device_code import judging
from device_code.compiling import Compiled, Job, Workshop, compile_all, compile_file
from device_code.record import difference, record_of, save
from device_code.toolchain import find_cuda, find_hip

from pylucebox.core.errors import LuceboxError, MissingError
from pylucebox.core.paths import Layout, find_layout
from pylucebox.native.resource_report import CudaKernelResources, KernelResources
from pylucebox.source.series import read_series

ROOT = Path(__file__).resolve().parent.parent
CLAIMS = ROOT / "tools/device_code/claims.toml"
RECORD = ROOT / "docs/device-code/kernels.json"
HIP_ARCHS = ("gfx1151", "gfx1201")
CUDA_ARCHS = ("sm_90a",)
CUDA_FOLDER = "ggml/src/ggml-cuda"
SOURCE_FOLDERS = (CUDA_FOLDER, "ggml/include", "ggml/src")
KERNEL_FILES = (".cu", ".cuh")


def overlay_files(layout: Layout) -> list[Path]:
    """Return our kernels and device headers; those of tests and benchmarks are in no build's library."""
    overlay = layout.patches_dir / "overlay"
    found = (path for path in overlay.rglob("*") if path.suffix in KERNEL_FILES)
    return sorted(path for path in found if path.relative_to(overlay).parts[0] != "tests")


def touched_files(layout: Layout) -> list[Path]:
    """Return the upstream kernels that a patch changes, where the prepared tree holds them."""
    names = {name for patch in read_series(layout.patches_dir) for name in patch.files}
    return [layout.prepared_dir / n for n in sorted(names) if n.startswith(CUDA_FOLDER) and n.endswith(".cu")]


def workshop(layout: Layout, archs: Sequence[str]) -> tuple[Workshop, list[str]]:
    """Return what compiling needs, and the lines that say which compilers are not here."""
    missing = []
    hip = cuda = None
    cache = layout.build_root / "device-code"
    if any(arch.startswith("gfx") for arch in archs):
        try:
            hip = find_hip(cache)
        except MissingError as bad:
            missing.append(not_run("hip", bad))
    if any(arch.startswith("sm_") for arch in archs):
        try:
            cuda = find_cuda()
        except MissingError as bad:
            missing.append(not_run("nvcc", bad))
    trees = (layout.patches_dir / "overlay", layout.prepared_dir)
    folders = [tree / part for tree in trees for part in SOURCE_FOLDERS]
    return Workshop(cache, tuple(f for f in folders if f.is_dir()), hip, cuda), missing


def not_run(name: str, bad: MissingError) -> str:
    """Return the line for an absent compiler. Raises MissingError when LUCEBOX_REQUIRE names it."""
    if name in os.environ.get("LUCEBOX_REQUIRE", "").split(","):
        raise MissingError(f"required here: {bad.message}", hint=bad.hint, log_tail=bad.log_tail) from bad
    return f"not run: {name} ({bad.message}; {bad.hint})"


def can_run(shop: Workshop, job: Job) -> bool:
    return (shop.hip if job.is_hip else shop.cuda) is not None


def every_job(layout: Layout, nvcc_kernels: bool) -> list[Job]:
    """Return what a full check compiles, kernels first: they take longest.

    Upstream's kernels are compiled for one GPU: they are reported, not judged.
    """
    ours = sorted(overlay_files(layout), key=lambda path: (path.suffix != ".cu", path))
    jobs = [Job(path, arch) for path in ours for arch in HIP_ARCHS]
    jobs += [Job(path, HIP_ARCHS[0]) for path in touched_files(layout)]
    with_nvcc = [path for path in ours if nvcc_kernels or path.suffix == ".cuh"]
    return jobs + [Job(path, arch) for path in with_nvcc for arch in CUDA_ARCHS]


def patched_warnings(layout: Layout, shop: Workshop) -> list[str]:
    """Return the warnings of patched kernels that upstream's do not have."""
    if shop.hip is None:
        return []
    ours, theirs = layout.prepared_dir, layout.pristine_dir
    names = [source.relative_to(ours) for source in touched_files(layout)]
    upstream = replace(shop, includes=tuple(theirs / part for part in SOURCE_FOLDERS))
    now, before = (
        compile_all(where, [Job(tree / name, HIP_ARCHS[0], syntax_only=True) for name in names])
        for where, tree in ((shop, ours), (upstream, theirs))
    )
    pairs = zip(now, before, strict=True)
    return [fault for pair in pairs for fault in judging.patched_faults(*pair, ours, theirs)]


def check_everything(layout: Layout, write: bool, nvcc_kernels: bool) -> int:
    """Compile all; print one line a file and GPU, then what is wrong."""
    shop, missing = workshop(layout, (*HIP_ARCHS, *CUDA_ARCHS))
    jobs = every_job(layout, nvcc_kernels)
    started = time.monotonic()
    results = compile_all(shop, [job for job in jobs if can_run(shop, job)], show)
    claims, overlay = judging.read_claims(CLAIMS), layout.patches_dir / "overlay"
    faults = [fault for done in results for fault in judging.faults(done, claims, overlay)]
    faults += patched_warnings(layout, shop)
    if not missing:
        faults += judging.unmatched(claims, results)
        record = record_of(results, claims, overlay, [shop.hip.description] if shop.hip else [])
        if write:
            save(RECORD, record)
        elif drift := difference(RECORD, record):
            faults.append(
                f"{RECORD.relative_to(ROOT)}: {drift}; write it again with --write, then tools/render_docs.py"
            )
    kernels = sum(len(done.every_kernel) for done in results)
    seconds = time.monotonic() - started
    print(*missing, *faults, sep="\n" if missing or faults else "")
    print(f"{len(results)} files compiled, {kernels} kernels, {len(faults)} faults, {seconds:.0f} s")
    return 7 if faults else 0


def show(done: Compiled) -> None:
    """Print the line of one file and GPU."""
    kernels = done.every_kernel
    faulty = sum(bool(kernel.faults) for kernel in kernels)
    state = "FAIL" if done.error else "ok"
    said = f"{len(kernels)} kernels, {faulty} with private memory, {done.seconds:.1f} s"
    print(f"{state:<5}{done.job.arch:<8} {done.job.source.name}: {said}", flush=True)


def check_one(layout: Layout, source: Path, archs: Sequence[str], asm: Path | None) -> int:
    """Compile one file and print every kernel in it."""
    if asm and len(archs) != 1:
        archs = archs[:1]
    shop, missing = workshop(layout, archs)
    print(*missing, sep="\n", end="\n" if missing else "")
    claims = judging.read_claims(CLAIMS)
    faults: list[str] = []
    for job in (Job(source.resolve(), arch) for arch in archs):
        if can_run(shop, job):
            done = compile_file(shop, job, asm)
            for kernel in done.every_kernel:
                print(kernel_line(kernel, done))
            faults += judging.faults(done, claims, layout.patches_dir / "overlay", all_ours=True)
    print(*faults, sep="\n", end="\n" if faults else "")
    return 7 if faults else 0


def kernel_line(kernel: KernelResources | CudaKernelResources, done: Compiled) -> str:
    """Return what a kernel's author wants to see at once."""
    name = judging.short_name(kernel.name)
    trouble = f"  <- {', '.join(kernel.faults)}" if kernel.faults else ""
    if isinstance(kernel, CudaKernelResources):
        return f"{kernel.arch} {kernel.registers} registers, {kernel.shared_bytes} B shared  {name}{trouble}"
    said = done.instructions[kernel.symbol]
    loops = ", ".join(f"{n}" for n in said.inner_loops.values())
    return (
        f"{kernel.arch} {kernel.vgprs} VGPRs, {kernel.sgprs} SGPRs, {kernel.lds_bytes} B LDS, "
        f"{kernel.occupancy} waves, {said.valu} VALU (inner loops: {loops or 'none'})  {name}{trouble}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path, help="a .cu or .cuh file; all of ours when left out")
    parser.add_argument("--arch", action="append", help="gfx1151, gfx1201, gfx1100, sm_90a; may be repeated")
    parser.add_argument("--asm", type=Path, help="write the AMDGPU assembly there (one --arch)")
    parser.add_argument("--write", action="store_true", help=f"write {RECORD.relative_to(ROOT)}")
    parser.add_argument(
        "--nvcc-kernels", action="store_true", help="overlay .cu files with nvcc too (minutes)"
    )
    options = parser.parse_args()
    layout = find_layout()
    try:
        if not layout.prepared_dir.is_dir():
            raise MissingError(f"{layout.prepared_dir}: no prepared tree", hint="lucebox build --target cpu")
        if options.file is None:
            return check_everything(layout, options.write, options.nvcc_kernels)
        return check_one(layout, options.file, options.arch or [*HIP_ARCHS, *CUDA_ARCHS], options.asm)
    except LuceboxError as bad:
        print(f"error: {bad.message}", *bad.log_tail, sep="\n", file=sys.stderr)
        print(f"hint: {bad.hint}" if bad.hint else "", file=sys.stderr)
        return bad.exit_code


if __name__ == "__main__":
    sys.exit(main())
