"""Shared fixtures. A folder says what its tests need: unit and cli nothing, native the CPU build, gpu one."""

import os
from pathlib import Path

import pytest

from pylucebox.core.paths import Layout, find_layout
from pylucebox.core.receipts import BuildReceipt

TESTS = Path(__file__).parent
MARKS = ("unit", "cli", "native", "gpu")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in MARKS:
            item.add_marker(folder)


def lacking(need: str, what: str) -> None:
    """Skip a test that this machine cannot run; fail it when LUCEBOX_REQUIRE names the need."""
    if need in os.environ.get("LUCEBOX_REQUIRE", "").split(","):
        pytest.fail(f"required here, but missing: {what}")
    pytest.skip(f"not run: {what}")


@pytest.fixture(scope="session")
def layout() -> Layout:
    """The layout of the checkout under test."""
    return find_layout()


@pytest.fixture(scope="session")
def build(layout: Layout) -> BuildReceipt:
    """The finished CPU build."""
    receipt = BuildReceipt.load(layout.build_dir("cpu"))
    if receipt is None:
        lacking("native", "the CPU build (run `lucebox build --target cpu`)")
    assert receipt is not None
    return receipt
