"""Measure how fast weights are encoded: `python tools/measure_quantize.py --out docs/results/FILE.json`.

Random rows of 4096 weights go to the encoders of a build, as `lucebox convert` hands them over. One thread is
held against the scalar reference, which gives the same bytes, and all processors against one.
Prints hours a model.
"""

import argparse
import ctypes
import shlex
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pylucebox.cli.freshness import is_current
from pylucebox.core.builds import find_build
from pylucebox.core.errors import LuceboxError
from pylucebox.core.paths import find_layout
from pylucebox.formats.gguf_types import ROCMFPX_TYPES, TYPES, TensorType
from pylucebox.measure.benchmark import Arm, Plan, interleave
from pylucebox.measure.machine import describe_machine
from pylucebox.measure.render import markdown
from pylucebox.measure.report import Result
from pylucebox.measure.sources import Source
from pylucebox.runtime.native_encoder import NativeEncoder

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 4096
SIGMA = 0.02  # of the weights
MODEL_WEIGHTS = 284e9
UNIT = "Mweights/s"

Floats = NDArray[np.float32]
Encode = Callable[[TensorType, Floats, Floats | None], None]


def scalar(library: Path) -> Encode:
    """The reference, in C without vector instructions."""
    handle = ctypes.CDLL(str(library))
    handle.rocmfpx_codec_of.restype = ctypes.c_void_p
    run = handle.rocmfpx_quantize_with
    run.restype, engine = ctypes.c_size_t, 0
    run.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int,
        *[ctypes.c_void_p] * 2,
        *[ctypes.c_int64] * 2,
        ctypes.c_void_p,
    ]

    def encode(kind: TensorType, values: Floats, importance: Floats | None) -> None:
        out = np.empty((len(values), kind.row_bytes(COLUMNS)), np.uint8)
        weights = None if importance is None else importance.ctypes.data
        codec = handle.rocmfpx_codec_of(kind.id)
        run(codec, engine, values.ctypes.data, out.ctypes.data, *values.shape, weights)

    return encode


def native(encoder: NativeEncoder) -> Encode:
    return lambda kind, values, importance: (encoder.encode(values, kind, importance), None)[1]


def make_arm(name: str, encode: Encode, rows: int) -> Arm:
    """An arm that encodes the same rows as every type, without importance and with."""
    rng = np.random.default_rng(1)
    values = (rng.standard_normal((rows, COLUMNS)) * SIGMA).astype(np.float32)
    weights = rng.gamma(0.5, 1, COLUMNS).astype(np.float32)

    def run() -> dict[str, float]:
        found = {}
        for type_name, *_ in ROCMFPX_TYPES:
            for case, importance in ((type_name.lower(), None), (f"{type_name.lower()}, imatrix", weights)):
                start = time.perf_counter()
                encode(TYPES[type_name], values, importance)
                found[case] = values.size / (time.perf_counter() - start) / 1e6
        return found

    return Arm(name, run)


def measure(rows: int, rounds: int, threads: int, command: str) -> Result:
    """Take turns and return the result. Raises MissingError without a build."""
    layout = find_layout()
    build = find_build(layout)
    with NativeEncoder.of(build, 1) as one, NativeEncoder.of(build, threads) as many:
        single = make_arm("1 thread", native(one), rows)
        arms = [(make_arm("scalar", scalar(build.bin_dir / "libggml-base.so"), rows), single)]
        if threads > 1:
            arms.append((single, make_arm(f"{threads} threads", native(many), rows)))
        pairs = [interleave(a, b, UNIT, Plan(rounds, rounds)) for a, b in arms]
    fresh = is_current(layout, build)
    return Result(
        what="Encoding weights as the ROCmFPX types",
        date=date.today().isoformat(),
        command=command,
        machine=describe_machine(),
        receipts={build.target: build.id},
        source=Source.read(ROOT, "kernels", build.target) if fresh else Source(),
        settings={"rows": str(rows), "columns": str(COLUMNS), "weights": f"normal, sigma {SIGMA}"},
        comparisons=tuple(c for pair in pairs for c in pair),
    )


def hours(result: Result) -> list[str]:
    """One line a comparison: hours for a whole model at arm B's speed."""
    lines = []
    for c in result.comparisons:
        speed = c.levels[1]
        lines.append(f"{c.case:<28} {c.arm_b:<10} {MODEL_WEIGHTS / speed.value / 1e6 / 3600:6.2f} h")
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, help="result file to write")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--rows", type=int, default=256, help="of 4096 weights, a measurement (default: 256)")
    parser.add_argument(
        "--threads", type=int, default=describe_machine().cores, help="default: all processors"
    )
    args = parser.parse_args(argv)
    words = ["tools/measure_quantize.py", *(sys.argv[1:] if argv is None else argv)]
    try:
        result = measure(args.rows, args.rounds, args.threads, shlex.join(["python", *words]))
    except LuceboxError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return error.exit_code
    if args.out:
        result.save(args.out)
    print(markdown(result, stale=False))
    print("\n".join(hours(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
