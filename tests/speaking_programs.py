"""Small scripts that speak as llama-bench, llama-perplexity and our native benchmark programs do."""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from pylucebox.measure.llama_bench import OWN, SHARED

FACTS = {**dict.fromkeys((*SHARED, *OWN), "1"), "backends": "CPU", "type_k": "f16"}

# A model's speed is the number in its file.
LLAMA_BENCH = """
import json, sys
value = lambda name: sys.argv[sys.argv.index(name) + 1]
speed = float(open(value("-m")).read())
facts = json.loads('''@facts''')
if "--type-k" in sys.argv:
    facts["type_k"] = value("--type-k")
print("ggml: noise", file=sys.stderr)
for threads in value("-t").split(","):
    for prompt, decode in ((int(value("-p")), 0), (0, int(value("-n")))):
        if prompt or decode:
            samples = [int(1e9 * (prompt + decode) / speed / int(threads))] * int(value("-r"))
            print(json.dumps({**facts, "n_prompt": prompt, "n_gen": decode, "n_depth": 0,
                              "n_threads": int(threads), "samples_ns": samples}))
"""

STATISTICS = """
chunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence         Same top p
   1    4.5 ± 0.1       2.52582 ±    0.33311       0.01940 ±    0.00497       94.488 ±  2.033 %
====== Perplexity statistics ======
Mean PPL(Q)                   :  42.961154 ±   6.057233
Mean PPL(base)                :  42.900000 ±   6.000000
====== KL divergence statistics ======
Mean    KLD:   0.004677 ±   0.000852
Maximum KLD:   1.343115
99.9%   KLD:   1.105553
99.0%   KLD:   0.079782
====== Token probability statistics ======
Mean    Δp:  0.005 ± 0.030 %
Same top p: 98.910 ± 0.181 %
"""

# What the model's file holds decides what goes wrong.
LLAMA_PERPLEXITY = """
import struct, sys
value = lambda name: sys.argv[sys.argv.index(name) + 1]
complain = lambda words: print(words, file=sys.stderr)
model, context = open(value("-m")).read(), int(value("-c"))
complain("0.01 I print_info: file type   = Q8_0\\n0.01 I print_info: file size   = 28.47 MiB (10.02 BPW) ")
if "--kl-divergence" in sys.argv:
    if model == "foreign":
        complain("kl_divergence: inconsistent vocabulary (5 vs 6)")
    print('''@statistics''')
elif model == "short":
    complain("perplexity: you need at least 32 tokens to evaluate perplexity with a context of 16")
else:
    chunks = int(value("--chunks")) if "--chunks" in sys.argv else 20
    size = 4 * chunks * context + 2 * chunks * (context - 1 - context // 2) * 10
    with open(value("--kl-divergence-base"), "wb") as base:
        base.write(struct.pack("<8siii", b"_logits_", context, 5, chunks) + bytes(size))
    perplexity = "nan" if model == "broken" else "42.9248"
    complain(f"ETA 0.13.274.887 I Final estimate: PPL = {perplexity} +/- 6.1")
"""

# Keeps the contract: speeds are fixed per arm and rise by a part in a thousand with each request.
CONTRACT = """
import json, sys
SPEEDS = @speeds
def line(case, arm, **more):
    print(json.dumps({"case": case, "arm": arm, "unit": "weights/s", **more}), flush=True)
print("noise for people", file=sys.stderr)
if "--list" in sys.argv:
    for case in @cases:
        for arm in SPEEDS:
            line(case, arm)
elif "--serve" in sys.argv:
    for count, request in enumerate(sys.stdin):
        case, arm = request.rstrip("\\n").split("\\t")
        line(case, arm, value=SPEEDS[arm] * 1.001**count, layout="rows", extra="ignored")
else:
    for case in @cases:
        for arm in SPEEDS:
            line(case, arm, value=SPEEDS[arm])
            line(case, arm, value=4 * SPEEDS[arm])
"""


# Both shell and Python: a first line that names the interpreter breaks where its path holds a space.
START = """#!/bin/sh
''':'
exec {python} -IS "$0" "$@"
' '''
"""


def write_program(path: Path, text: str) -> Path:
    """Write a Python program that can be started by its path, and starts fast."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(START.format(python=shlex.quote(sys.executable)) + text, encoding="utf-8")
    path.chmod(0o755)
    return path


def write_llama_bench(folder: Path) -> Path:
    return write_program(folder / "llama-bench", LLAMA_BENCH.replace("@facts", json.dumps(FACTS)))


def write_llama_perplexity(folder: Path) -> Path:
    return write_program(folder / "llama-perplexity", LLAMA_PERPLEXITY.replace("@statistics", STATISTICS))


def write_contract_program(
    path: Path, speeds: dict[str, float], cases: Sequence[str] = ("dot k=4096",)
) -> Path:
    return write_program(path, CONTRACT.replace("@speeds", repr(speeds)).replace("@cases", repr(cases)))


def write_model(path: Path, content: object) -> Path:
    path.write_text(str(content), encoding="utf-8")
    return path
