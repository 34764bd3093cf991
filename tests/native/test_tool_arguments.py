"""Replayed tool calls with broken arguments are a client error named by field; the server lives on."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from test_run import Running, launch, make_home

from pylucebox.core.paths import Layout
from pylucebox.core.receipts import BuildReceipt

NESTED = '{"a":' * 2000 + "1" + "}" * 2000
FIELD = "messages[1].tool_calls[0].function.arguments"


@pytest.fixture(scope="module")
def server(
    build: BuildReceipt, layout: Layout, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    started = launch(make_home(tmp_path_factory.mktemp("home"), layout), "--spec", "off")
    yield started
    started.launcher.terminate()
    started.launcher.wait(30)


def answer(server: Running, arguments: Any) -> requests.Response:
    """Send a history whose assistant turn called a tool with `arguments`."""
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "What is 2 + 3?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "5"},
        {"role": "user", "content": "Thanks."},
    ]
    body = {"messages": messages, "max_tokens": 2, "temperature": 0}
    return requests.post(f"{server.facts['url']}/v1/chat/completions", json=body, timeout=120)


@pytest.mark.parametrize("arguments", ["{", "17", 17, [1], "[1]", '"text"', '{"a": }', True, NESTED, "  "])
def test_arguments_that_are_no_object_are_refused_by_field(server: Running, arguments: Any) -> None:
    refused = answer(server, arguments)
    assert refused.status_code == 400
    assert FIELD in refused.json()["error"]["message"]
    assert answer(server, '{"a": 2}').status_code == 200


@pytest.mark.parametrize(
    "arguments", ['{"a": 2, "b": 3}', {"a": 2}, "{}", "", None, json.dumps({"t": "}{[" * 200})]
)
def test_objects_and_nothing_at_all_are_taken(server: Running, arguments: Any) -> None:
    assert answer(server, arguments).status_code == 200


def test_tool_calls_that_are_no_list_are_refused(server: Running) -> None:
    messages = [{"role": "assistant", "content": "", "tool_calls": "add"}]
    refused = requests.post(
        f"{server.facts['url']}/v1/chat/completions", json={"messages": messages}, timeout=120
    )
    assert refused.status_code == 400
    assert "messages[0].tool_calls" in refused.json()["error"]["message"]
