#!/usr/bin/env python3
"""Stands in for llama-server in tests: same options, health, a few paths, and faults on demand.

FAKE_SERVER holds a JSON object: load_s (seconds until ready), fail (exit code, no serving), ignore_term,
exit_code (at SIGTERM or end_at), end_at (path whose answer is the last), lines (printed at start), tokens and
drafts (what /metrics reports), speculative, plan (bytes of weights for --fit-print; without it: nothing),
devices (lines of --list-devices).
"""

import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PLAN = json.loads(os.environ.get("FAKE_SERVER", "{}"))
BEGAN = time.monotonic()
METRICS = """# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total {tokens}
llamacpp:tokens_predicted_seconds_total 0.25
llamacpp:spec_decode_num_draft_tokens_total {drafts}
llamacpp:spec_decode_num_accepted_tokens_total 3
llamacpp:spec_decode_num_drafts_total 2
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{{position="1"}} 1
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{{position="0"}} 2
"""


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


class Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        print(format % args, flush=True)

    def answer(self, status: int, body: object) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        if self.path == PLAN.get("end_at"):
            self.wfile.flush()
            os._exit(PLAN.get("exit_code", 0))

    def do_GET(self) -> None:
        loading = time.monotonic() - BEGAN < PLAN.get("load_s", 0)
        if self.path == "/health":
            self.answer(503 if loading else 200, {"status": "loading" if loading else "ok"})
        elif self.path == "/props":
            settings = {"n_ctx": 2048}
            self.answer(200, {"default_generation_settings": settings, "model_path": option("--model")})
        elif self.path == "/slots":
            self.answer(200, [{"speculative": PLAN.get("speculative", "--spec-draft-model" in sys.argv)}])
        elif self.path == "/metrics":
            self.answer(200, METRICS.format(tokens=PLAN.get("tokens", 9), drafts=PLAN.get("drafts", 4)))
        else:
            self.answer(404, {"error": {"message": "File Not Found"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/apply-template":
            end = "</think>" if option("--reasoning") == "off" else "<think>"
            self.answer(200, {"prompt": body["messages"][0]["content"] + end})
        elif self.path == "/v1/chat/completions":
            timings = {"predicted_n": 2, "predicted_ms": 500.0, "draft_n": 5, "draft_n_accepted": 4}
            choice = {"message": {"content": "four"}, "finish_reason": "stop"}
            self.answer(200, {"choices": [choice], "timings": timings})
        elif self.path == "/completion":
            self.answer(200, {"content": "four", "tokens": [7, 1], "stop_type": "eos"})
        else:
            self.answer(400, {"error": {"message": "bad path"}})


def end(number: int, frame: object) -> None:
    print("stopping", flush=True)
    if not PLAN.get("ignore_term"):
        sys.stdout.flush()
        os._exit(PLAN.get("exit_code", 0))


def print_plan() -> int:
    """What --fit-print on prints; an older server refuses the option."""
    if "plan" not in PLAN:
        print("error: invalid argument: --fit-print")
        return 1
    role = {"model": PLAN["plan"], "context": 1 << 20, "compute": 1 << 20}
    context = int(option("--ctx-size")) if "--ctx-size" in sys.argv else 1 << 20
    role["context"] *= context // 1024
    places = {"host": {"free": 1, "total": 1, "target": role}}
    print("noise\n" + json.dumps({"n_ctx": context, "n_ctx_seq": context, "places": places}))
    return 0


def main() -> int:
    if "--fit-print" in sys.argv:
        return print_plan()
    signal.signal(signal.SIGTERM, end)
    for line in PLAN.get("lines", ["loading"]):
        print(line, flush=True)
    if "fail" in PLAN:
        return int(PLAN["fail"])
    ThreadingHTTPServer((option("--host"), int(option("--port"))), Handler).serve_forever()
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--list-devices"]:
        print("Available devices:", *(PLAN.get("devices") or ["(none)"]), sep="\n  ")
        sys.exit(0)
    sys.exit(main())
