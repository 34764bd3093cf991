"""Try a packed build on the machine with the GPU: `python gpu_smoke.py --model FILE.gguf --out RESULT.json`.

Needs Python 3.11 and nothing else; lies in the folder that tools/gpu_pack.py packed. Checks receipt and
hashes, finds the toolkit's libraries, lists the devices, decodes on the GPU with llama-server and checks in
its log that the layers and their weights went there. Writes one JSON object; exit code 0 when all holds,
else 1.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
NEEDED = re.compile(
    rb"(?<=\0)(lib(?:cublas|cublasLt|cudart|cuda|nvrtc|amdhip64|hipblas|rocblas)\.so\.\d+)(?=\0)"
)
FOLDERS = (
    "/usr/local/nvidia/lib64",
    "/usr/local/cuda*/lib64",
    "/usr/local/cuda*/targets/*/lib",
    "/usr/local/cuda*/compat",
    "/opt/*/.venv/lib/python3*/site-packages/nvidia/*/lib",
    "/opt/*/lib/python3*/site-packages/nvidia/*/lib",
    "/usr/*/lib/python3*/*-packages/nvidia/*/lib",
    "/usr/lib/python3*/*-packages/nvidia/*/lib",
    "/opt/rocm*/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
)
OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
BUFFER = re.compile(r"(\S+) model buffer size = +([\d.]+) MiB")
DEVICE = re.compile(r"^ +((?:CUDA|ROCm)\d+): (.*)$", re.MULTILINE)
START_S = 300.0
REPLY_S = 120.0


def main() -> int:
    options = arguments()
    result: dict = {"schema": 1, "ok": False, "problems": []}
    try:
        check_files(options.pack, result)
        env = environment(options.pack, result)
        list_devices(options.pack, env, options.rehearse, result)
        if options.model:
            decode(options, env, result)
    except Exception as bad:
        result["problems"].append(f"{type(bad).__name__}: {bad}")
    result["ok"] = not result["problems"]
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        try:
            write_result(options.out, text + "\n")
        except OSError as bad:
            print(f"error: --out: {bad}", file=sys.stderr)
            return 1
    return 0 if result["ok"] else 1


def write_result(out: Path, text: str) -> None:
    """Write a file complete or not at all; what is no ordinary file, such as a device, is written into."""
    if out.exists() and not out.is_file():
        out.write_text(text, encoding="utf-8")
        return
    partial = out.with_name(out.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(out)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--pack", type=Path, default=HERE, help="the unpacked folder (default: this one)")
    parser.add_argument(
        "--model", type=Path, help="a GGUF file; without it only files and devices are checked"
    )
    parser.add_argument("--tokens", type=int, default=32, help="how many to decode")
    parser.add_argument("--prompt", default="Hello")
    parser.add_argument("--server-args", default="", help="more words for llama-server")
    parser.add_argument("--out", type=Path, help="where to write the result")
    parser.add_argument("--rehearse", action="store_true", help="accept a machine without a GPU")
    options = parser.parse_args()
    options.pack = options.pack.resolve()
    return options


def check_files(pack: Path, result: dict) -> None:
    """Compare every file with the manifest, and the manifest with the receipt."""
    manifest = json.loads((pack / "manifest.json").read_text(encoding="utf-8"))
    result["receipt"] = json.loads((pack / "receipt.json").read_text(encoding="utf-8"))
    for name, row in manifest["files"].items():
        path = pack / name
        if not path.is_file():
            result["problems"].append(f"{name}: missing")
        elif sha256(path) != row["sha256"]:
            result["problems"].append(f"{name}: not the file that was packed")
    if manifest["receipt"] != result["receipt"]["id"]:
        result["problems"].append("receipt.json: not the one that manifest.json names")
    result["files"] = len(manifest["files"])


def sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def environment(pack: Path, result: dict) -> dict[str, str]:
    """Find the libraries that are not packed and return the environment that shows them to the loader."""
    library = next((p for name in ("cuda", "hip") for p in pack.glob(f"libggml-{name}.so*")), None)
    wanted = sorted({m.decode() for m in NEEDED.findall(library.read_bytes())}) if library else []
    if any(name.startswith("libcublas.") for name in wanted):
        wanted.append(next(n for n in wanted if n.startswith("libcublas.")).replace("cublas", "cublasLt"))
    folders = [name for name in os.environ.get("LD_LIBRARY_PATH", "").split(":") if name]
    patterns = [*FOLDERS, f"{sys.prefix}/lib/python3*/site-packages/nvidia/*/lib"]
    folders += [str(f) for p in patterns for f in sorted(Path("/").glob(p.lstrip("/")), reverse=True)]
    found = {name: next((f for f in folders if Path(f, name).exists()), None) for name in wanted}
    result["libraries"] = found
    result["problems"] += [
        f"{name}: not found on this machine" for name, folder in found.items() if not folder
    ]
    path = [str(pack), *dict.fromkeys(folder for folder in found.values() if folder)]
    if not any(Path(folder, "libgomp.so.1").exists() for folder in folders):
        path.append(str(pack / "fallback"))
    path += [name for name in os.environ.get("LD_LIBRARY_PATH", "").split(":") if name]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(dict.fromkeys(path))}


def list_devices(pack: Path, env: dict[str, str], rehearse: bool, result: dict) -> None:
    """Ask the packed program which GPUs it sees, and the driver for its version."""
    done = subprocess.run([pack / "llama-bench", "--list-devices"], env=env, capture_output=True, text=True)
    text = done.stdout + done.stderr
    result["devices"] = [f"{name}: {what}" for name, what in DEVICE.findall(text)]
    if not result["devices"] and not rehearse:
        result["problems"].append(f"no GPU is seen: {' '.join(text.split())[-400:]}")
    with contextlib.suppress(OSError):
        words = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
        result["driver"] = subprocess.run(words, capture_output=True, text=True).stdout.split("\n")[0]


def decode(options: argparse.Namespace, env: dict[str, str], result: dict) -> None:
    """Serve the model, decode, and read from the log where the weights went."""
    model = options.model
    result["model"] = {"name": model.name, "size_bytes": model.stat().st_size, "sha256": sha256(model)}
    log_path = (options.out or Path("gpu_smoke.json")).with_suffix(".log")
    port = free_port()
    words = [options.pack / "llama-server", "-m", model, "--port", str(port), "-ngl", "999", "-lv", "4"]
    words += ["-c", "4096", "-np", "1", *options.server_args.split()]
    result["command"] = [str(word) for word in words]
    with log_path.open("w", encoding="utf-8") as log:
        server = subprocess.Popen(words, env=env, stdout=log, stderr=subprocess.STDOUT)
    try:
        result["start_s"] = wait_until_ready(server, port)
        ask(port, options, result)
    finally:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(20)
        server.kill()
        text = log_path.read_text(encoding="utf-8", errors="replace")
        result["log_tail"] = text.splitlines()[-8:]
        check_log(text, options.rehearse, result)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(server: "subprocess.Popen[bytes]", port: int) -> float:
    """Return the seconds it took; raise when the server ends or does not answer in time."""
    started = time.monotonic()
    while time.monotonic() - started < START_S:
        if server.poll() is not None:
            raise RuntimeError(f"llama-server ended (exit {server.returncode}) before it was ready")
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5),
        ):
            return round(time.monotonic() - started, 2)
        time.sleep(0.2)
    raise TimeoutError(f"llama-server was not ready after {START_S:.0f} s")


def ask(port: int, options: argparse.Namespace, result: dict) -> None:
    """Decode greedily, twice: the second answer must be the first's, token for token."""
    body = {"prompt": options.prompt, "n_predict": options.tokens, "temperature": 0, "ignore_eos": True}
    data = json.dumps({**body, "return_tokens": True, "cache_prompt": False}).encode()
    answers = []
    for _ in range(2):
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/completion", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=REPLY_S) as reply:
            answers.append(json.load(reply))
    tokens = [one["tokens"] for one in answers]
    result["tokens"], result["text"] = tokens[0], answers[0]["content"]
    result["tokens_per_second"] = round(answers[1]["timings"]["predicted_per_second"], 2)
    if len(tokens[0]) != options.tokens:
        result["problems"].append(f"decoded {len(tokens[0])} tokens of {options.tokens}")
    if tokens[0] != tokens[1]:
        result["problems"].append("decoded twice with different tokens")


def check_log(text: str, rehearse: bool, result: dict) -> None:
    """Check that all layers went to the GPU, and that a GPU holds weights at all.

    The count of layers alone proves nothing: a build without a GPU back-end prints it too.
    """
    layers = OFFLOADED.findall(text)
    result["offloaded"] = [f"{done}/{total}" for done, total in layers]
    result["buffers_mib"] = {name: float(size) for name, size in BUFFER.findall(text)}
    result["graph_splits"] = re.findall(r"graph splits = (\d+)", text)
    if rehearse:
        return
    if not layers or any(done != total for done, total in layers):
        result["problems"].append(f"layers on the GPU: {result['offloaded'] or 'none'}")
    if not any(name.startswith(("CUDA", "ROCm")) for name in result["buffers_mib"]):
        result["problems"].append(f"no weights on a GPU: {result['buffers_mib']}")


if __name__ == "__main__":
    sys.exit(main())
