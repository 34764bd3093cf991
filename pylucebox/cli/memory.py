"""The memory plan of a model about to be served: had, printed, and enforced."""

import logging
from collections.abc import Iterator
from dataclasses import replace

from pylucebox.cli.console import format_bytes
from pylucebox.core.errors import LuceboxError, RequestError
from pylucebox.formats.gguf_types import TYPES
from pylucebox.formats.inspect import ModelInfo
from pylucebox.formats.memory_plan import predict
from pylucebox.runtime.memory import HOST, Demand, Place, ask_build, from_headers
from pylucebox.runtime.models import Speculation
from pylucebox.runtime.server import ServerCommand

logger = logging.getLogger(__name__)

Line = tuple[str, str]
DEFAULT_SLOTS = 4  # llama-server's, sharing one cache
DEFAULT_UBATCH = 512
MOST_TOKENS = 1 << 24  # sixteen times what the model was made for; the build takes seconds to plan for that
LEAST_CONTEXT = 4096  # llama-server cuts a context that nobody chose down to this, not further


def plan_memory(
    command: ServerCommand, model: ModelInfo, speculation: Speculation, *, headers_only: bool = False
) -> Demand | None:
    """Ask the build; when it cannot tell or shall not be asked, estimate from headers.

    None for an architecture that only the build could plan for.
    """
    try:
        if headers_only:
            return _estimate(command, model, speculation)
        demand = ask_build(command)
        if command.context_tokens is None and demand.overcommitted:  # the server will take less
            demand = ask_build(replace(command, context_tokens=LEAST_CONTEXT))
        return demand
    except LuceboxError as error:
        if command.program.exists():  # without a build there is none to ask, and nobody expects it
            logger.warning(
                "warning: the build gives no memory plan, so a model that does not fit is not refused: %s",
                error.message,
            )
    return _estimate(command, model, speculation)


def _estimate(command: ServerCommand, model: ModelInfo, speculation: Speculation) -> Demand | None:
    """Predict for what the server will run with: its defaults, and the further arguments that change them."""
    if not model.is_target:
        return None
    cache_type = (command.extra_value("-ctk", "--cache-type-k") or "F16").upper()
    parallel = command.extra_value("-np", "--parallel")
    ubatch = command.extra_value("-ub", "--ubatch-size")
    plan = predict(
        model,
        speculation.drafter,
        context_tokens=command.context_tokens or model.context_tokens,
        ubatch=_count(ubatch, DEFAULT_UBATCH),
        parallel=_count(parallel, DEFAULT_SLOTS),
        kv_type=cache_type if cache_type in TYPES else "F16",
        draft_tokens=speculation.draft_tokens,
        unified=parallel is None,
        flash_attention=command.extra_value("-fa", "--flash-attn") != "off",
    )
    return from_headers(plan)


def _count(text: str | None, default: int) -> int:
    return int(text) if text and text.isdecimal() and int(text) else default


def refuse_overcommit(demand: Demand | None, *, allowed: bool) -> None:
    """Raise RequestError when the plan exceeds what a device offers; an estimate alone refuses nothing."""
    over = demand.overcommitted if demand and demand.measured else ()
    if over and not allowed:
        raise RequestError(
            f"the model does not fit: {'; '.join(place_text(place) for place in over)}",
            hint="take a smaller --ctx-size or a smaller type, or start it all the same: --allow-overcommit",
        )


def memory_lines(memory: Demand | None) -> Iterator[Line]:
    """Yield what is needed of each device, what it offers and what takes it."""
    if memory is None:
        yield "memory", "not predicted for this architecture"
        return
    by = "asked of the build" if memory.measured else "estimated from headers"
    yield "memory", f"{format_bytes(memory.needed_bytes)} at {memory.context_tokens} tokens, {by}"
    for place in memory.places:
        yield "", f"{place_text(place)}: {', '.join(_parts(place))}"


def place_text(place: Place) -> str:
    """Say what one device needs to give, and what it has."""
    where = "this machine's memory" if place.name == HOST else place.name
    offered = "" if place.offered_bytes is None else f" of {format_bytes(place.offered_bytes)} free"
    return f"{where} {format_bytes(place.needed_bytes)}{offered}"


def _parts(place: Place) -> Iterator[str]:
    for what, share in (("", place.target), ("drafter ", place.drafter)):
        parts = (
            ("weights", share.weights_bytes),
            ("caches", share.context_bytes),
            ("compute", share.compute_bytes),
        )
        yield from (f"{what}{name} {format_bytes(size)}" for name, size in parts if size)
