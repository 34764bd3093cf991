"""tools/make_fixture.py as a module for tests."""

import importlib.util
import sys
from pathlib import Path

_PATH = Path(__file__).resolve().parent.parent / "tools" / "make_fixture.py"
_SPEC = importlib.util.spec_from_file_location("make_fixture", _PATH)
assert _SPEC and _SPEC.loader
make_fixture = importlib.util.module_from_spec(_SPEC)
sys.modules["make_fixture"] = make_fixture  # its dataclasses look their module up
_SPEC.loader.exec_module(make_fixture)
