"""Talks to a running llama-server: the only place that knows its HTTP paths and field names."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import requests
import urllib3

from pylucebox.core.errors import RequestError, ServerError

Message = Mapping[str, Any]

# Metric names of llama-server (server_metrics in its tools/server), without the "llamacpp:" prefix.
METRIC_LINE = re.compile(r'^llamacpp:(\w+)(?:\{position="(\d+)"\})? ([-+.\deE]+)$', re.MULTILINE)
ACCEPTED_BY_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"


@dataclass(frozen=True)
class Timings:
    """What the server measured for one request. Times in seconds; drafted and accepted count draft tokens."""

    prompt_tokens: int
    prompt_s: float
    predicted_tokens: int
    predicted_s: float
    drafted: int
    accepted: int

    @property
    def tokens_per_second(self) -> float:
        return self.predicted_tokens / self.predicted_s if self.predicted_s > 0 else 0.0

    @classmethod
    def parse(cls, timings: Mapping[str, Any]) -> "Timings":
        """Read the `timings` object of a response; a server without it counts as zeros."""
        return cls(
            prompt_tokens=int(timings.get("prompt_n", 0)),
            prompt_s=float(timings.get("prompt_ms", 0.0)) / 1e3,
            predicted_tokens=int(timings.get("predicted_n", 0)),
            predicted_s=float(timings.get("predicted_ms", 0.0)) / 1e3,
            drafted=int(timings.get("draft_n", 0)),
            accepted=int(timings.get("draft_n_accepted", 0)),
        )


@dataclass(frozen=True)
class Reply:
    """One finished answer. token_ids is empty unless they were asked for; body is the server's own object."""

    text: str
    token_ids: tuple[int, ...]
    finish: str
    timings: Timings
    body: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class DraftCounters:
    """Speculation since the server started. accepted_by_position[i]: accepted at position i of a cycle."""

    predicted_tokens: int
    cycles: int
    drafted: int
    accepted: int
    accepted_by_position: tuple[int, ...]

    def since(self, before: "DraftCounters") -> "DraftCounters":
        """Return the counts between `before` and now."""
        earlier = before.accepted_by_position + (0,) * len(self.accepted_by_position)
        return DraftCounters(
            self.predicted_tokens - before.predicted_tokens,
            self.cycles - before.cycles,
            self.drafted - before.drafted,
            self.accepted - before.accepted,
            tuple(n - e for n, e in zip(self.accepted_by_position, earlier, strict=False)),
        )

    @classmethod
    def parse(cls, metrics: str) -> "DraftCounters":
        """Read the text of /metrics."""
        plain: dict[str, int] = {}
        positions: dict[int, int] = {}
        for name, position, value in METRIC_LINE.findall(metrics):
            if name == ACCEPTED_BY_POSITION:
                positions[int(position)] = int(float(value))
            elif not position:
                plain[name] = int(float(value))
        return cls(
            plain.get("tokens_predicted_total", 0),
            plain.get("spec_decode_num_drafts_total", 0),
            plain.get("spec_decode_num_draft_tokens_total", 0),
            plain.get("spec_decode_num_accepted_tokens_total", 0),
            tuple(positions[i] for i in sorted(positions)),
        )


class Client:
    """One server. Calls raise ServerError when nobody answers and RequestError when the server refuses."""

    def __init__(self, url: str, *, api_key: str | None = None, timeout_s: float = 600.0) -> None:
        """url: scheme, host, port, and the server's prefix if any. A proxy of the user is not used."""
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        self._session = requests.Session()
        self._session.trust_env = False
        if url.startswith("https:"):  # our own child, reached over loopback with the user's certificate
            self._session.verify = False
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        if api_key:
            self._session.headers["Authorization"] = f"Bearer {api_key}"

    def is_ready(self) -> bool:
        """Tell whether the server has loaded its model and takes requests."""
        try:
            return self._session.get(f"{self.url}/health", timeout=5).status_code == 200
        except requests.RequestException:
            return False

    def has_page(self) -> bool:
        """Tell whether a browser would be shown something: a build may leave the web page out."""
        try:
            return self._session.get(f"{self.url}/", timeout=5).status_code == 200
        except requests.RequestException:
            return False

    def props(self) -> dict[str, Any]:
        """Return /props: model path, file type, context length, chat template."""
        return self._json("GET", "/props")

    def context_tokens(self) -> int:
        """Return the context length of one slot in tokens, as served."""
        return int(self.props()["default_generation_settings"]["n_ctx"])

    def speculates(self) -> bool:
        """Tell whether the server has a drafter in use."""
        answer = self._call("GET", "/slots").json()
        return bool(answer) and all(bool(slot.get("speculative")) for slot in answer)

    def rendered_prompt(self, messages: Sequence[Message], **options: Any) -> str:
        """Return the prompt text the chat template makes of `messages`."""
        return str(self._json("POST", "/apply-template", {"messages": list(messages), **options})["prompt"])

    def chat(self, messages: Sequence[Message], **options: Any) -> Reply:
        """Ask /v1/chat/completions. options: fields of the request, for example temperature or max_tokens."""
        body = self._json("POST", "/v1/chat/completions", {"messages": list(messages), **options})
        choice = body["choices"][0]
        return Reply(
            str(choice["message"].get("content") or ""),
            (),
            str(choice.get("finish_reason") or ""),
            Timings.parse(body.get("timings", {})),
            body,
        )

    def complete(self, prompt: str | Sequence[int], **options: Any) -> Reply:
        """Continue a prompt given as text or token ids, with the ids of the answer."""
        text = prompt if isinstance(prompt, str) else list(prompt)
        body = self._json("POST", "/completion", {"prompt": text, "return_tokens": True, **options})
        return Reply(
            str(body["content"]),
            tuple(body.get("tokens", ())),
            str(body.get("stop_type") or ""),
            Timings.parse(body.get("timings", {})),
            body,
        )

    def draft_counters(self) -> DraftCounters:
        """Return what /metrics says of speculation so far (a server started with --metrics)."""
        return DraftCounters.parse(self._call("GET", "/metrics").text)

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        answer = self._call(method, path, body).json()
        if not isinstance(answer, dict):
            raise ServerError(f"{self.url}{path}: expected an object, got {type(answer).__name__}")
        return answer

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> requests.Response:
        try:
            answer = self._session.request(method, f"{self.url}{path}", json=body, timeout=self.timeout_s)
        except requests.RequestException as error:
            raise ServerError(
                f"{self.url}{path}: no answer ({type(error).__name__})", hint="see the server's log"
            ) from error
        if answer.status_code != 200:
            raise RequestError(f"{self.url}{path}: {answer.status_code} {_reason(answer)}")
        return answer


def _reason(answer: requests.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200].strip() or answer.reason
