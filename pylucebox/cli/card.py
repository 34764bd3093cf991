"""The run card: what `lucebox run` is about to serve, and what the server then says it serves."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pylucebox.cli.console import format_bytes
from pylucebox.cli.memory import memory_lines
from pylucebox.core.receipts import BuildReceipt
from pylucebox.formats.inspect import ModelInfo
from pylucebox.runtime.memory import Demand

Line = tuple[str, str]


@dataclass(frozen=True)
class Plan:
    """Everything known before the server starts.

    model_origin, drafter_origin: where the files come from ("embedded", "named", "beside the model", …).
    memory: None when the architecture cannot be planned. draft_tokens is 0 and `why` the reason without
    speculation.
    """

    model: ModelInfo
    model_origin: str
    build: BuildReceipt
    device: str
    memory: Demand | None
    drafter: ModelInfo | None
    drafter_origin: str
    draft_tokens: int
    why: str
    template: str
    passed_on: tuple[str, ...]
    environment: tuple[str, ...]

    def lines(self) -> Iterator[Line]:
        """Yield the lines of the card's first part."""
        model, build = self.model, self.build
        yield "model", f"{model.name}, {self.model_origin}: {model.path}"
        shares = ", ".join(f"{name} {format_bytes(t.size_bytes)}" for name, t in model.types.items())
        yield "", f"{model.architecture}, {format_bytes(model.file_bytes)}: {shares}"
        yield "build", f"{build.target}, receipt {build.short_id}, llama.cpp b{build.upstream_build}"
        yield "device", self.device
        yield from memory_lines(self.memory)
        yield "drafter", f"{self.drafter_origin}: {self.drafter.path}" if self.drafter else "none"
        on = f"on, up to {self.draft_tokens} drafts a cycle" if self.draft_tokens else "off"
        yield "speculation", f"{on}: {self.why}"
        yield "template", self.template
        if self.passed_on:
            yield "passed on", " ".join(self.passed_on)
        if self.environment:
            yield "environment", f"llama-server also reads {', '.join(self.environment)}"

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain values for JSON."""
        return {
            "model": _file(self.model, self.model_origin),
            "build": {"target": self.build.target, "receipt": self.build.id},
            "device": self.device,
            "memory": self.memory.as_dict() if self.memory else None,
            "drafter": _file(self.drafter, self.drafter_origin) if self.drafter else None,
            "speculation": {"on": self.draft_tokens > 0, "draft_tokens": self.draft_tokens, "why": self.why},
            "template": self.template,
        }


@dataclass(frozen=True)
class Served:
    """What the running server reports. context_tokens of one request; None for what it does not tell."""

    url: str
    context_tokens: int | None
    thinking: bool | None
    log: Path

    def lines(self) -> Iterator[Line]:
        """Yield the lines of the card's second part."""
        tokens = self.context_tokens
        yield "context", f"{tokens} tokens a request" if tokens else "not told by the server"
        yield "thinking", THINKING_TEXT[self.thinking]
        yield "log", str(self.log)
        yield "address", self.url

    def as_dict(self) -> dict[str, Any]:
        """Return what is served as plain values for JSON."""
        return {
            "url": self.url,
            "context_tokens": self.context_tokens,
            "thinking": self.thinking,
            "log": str(self.log),
        }


THINKING_TEXT = {
    True: "on: prompts end in <think>",
    False: "off: prompts end in </think>",
    None: "decided by the chat template",
}


def _file(model: ModelInfo, origin: str) -> dict[str, Any]:
    return {
        "name": model.name,
        "path": str(model.path),
        "origin": origin,
        "architecture": model.architecture,
        "size_bytes": model.file_bytes,
        "types": {name: t.tensors for name, t in model.types.items()},
    }
