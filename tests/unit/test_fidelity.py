"""Counting drafts and answers as the server does, on references written here."""

import json
from pathlib import Path

import pytest

from pylucebox.core.errors import IntegrityError
from pylucebox.measure.fidelity import NO_DRAFTING, Answer, Drafting, Prompt, load_drafting, load_prompts
from pylucebox.runtime.client import Timings

REFERENCES = Path(__file__).parent.parent / "vectors/tiny-ds4/prompts"
PROMPT = Prompt("p", "gsm", "?", 1, "42", "6 * 7 = 42\n#### 42", (5, 1))


def answer(text: str, ids: tuple[int, ...] = (5, 1)) -> Answer:
    return Answer(PROMPT, text, ids, Timings(1, 0, 2, 0, 0, 0), NO_DRAFTING)


def test_answers() -> None:
    assert answer(PROMPT.output).is_right and answer(PROMPT.output).is_identical
    other = answer("7 * 6 = 42\n#### 42")
    assert other.is_right and not other.is_identical
    assert not answer("#### 42\n#### 43").is_right
    assert not answer("#### 421").is_right
    assert not answer(PROMPT.output, (5, 2)).is_identical


@pytest.mark.parametrize(
    ("draft", "matched", "counted"),
    [
        ([9, 9, 9, 9, 9], 5, (1, 1, 1, 1, 1)),
        ([9, 9, 9, 9, 9], 2, (1, 1, 0, 0, 0)),
        ([9, 9, 1, 9, 9], 3, (1, 1, 0, 0, 0)),  # a matching end token in the middle ends the text
        ([9, 9, 1, 1, 9], 4, (1, 1, 0, 0, 0)),
        ([9, 9, 9, 9, 1], 5, (1, 1, 1, 1, 1)),  # as the last draft it counts
        ([9, 9, 9, 1, 9], 2, (1, 1, 0, 0, 0)),  # proposed, not reached
        ([1, 9, 9, 9, 9], 1, (0, 0, 0, 0, 0)),
    ],
)
def test_end_tokens_count_as_the_server_counts(tmp_path: Path, draft, matched, counted) -> None:
    row = {"id": "p", "cycles": [{"draft": draft, "accepted": matched}]}
    (tmp_path / "draft_reference.jsonl").write_text(json.dumps(row) + "\n")
    assert load_drafting(tmp_path) == {"p": Drafting(1, 5, sum(counted), counted)}


def test_the_shipped_references() -> None:
    """Known figures of upstream b11549 with this drafter, unpatched."""
    prompts = load_prompts(REFERENCES)
    assert [sum(p.kind == kind for p in prompts) for kind in ("gsm", "math")] == [50, 50]
    assert all(p.output.endswith(f"#### {p.answer}") for p in prompts)
    drafting = load_drafting(REFERENCES)
    for kind, accepted, drafted, cycles in (("gsm", 949, 1030, 206), ("math", 493, 575, 115)):
        total = sum((d for name, d in drafting.items() if name.startswith(kind)), NO_DRAFTING)
        assert (total.accepted, total.drafted, total.cycles) == (accepted, drafted, cycles)
        assert sum(total.by_position) == accepted


def test_damaged_references(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="unreadable reference"):
        load_prompts(tmp_path)
    (tmp_path / "gsm.jsonl").write_text('{"id": "p"}\n')
    with pytest.raises(IntegrityError, match="field 'ref_output_ids' is missing"):
        load_prompts(tmp_path, ["gsm"])
