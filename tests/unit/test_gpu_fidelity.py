"""Where greedy texts part, how perplexities compare, what falls short, on made-up logits."""

from dataclasses import replace

import numpy as np
import pytest
from tool_modules import load_tool

pytestmark = pytest.mark.unit
tool = load_tool("check_gpu_fidelity")


def rows(best, runner_up=None, gap=0.5):
    """Logits over 8 tokens in 0..1: 1 for `best`, `gap` less for `runner_up`, and a 0 somewhere."""
    made = np.full((len(best), 8), 0.25, dtype=np.float32)
    made[:, 7] = 0.0
    for i, token in enumerate(best):
        if runner_up is not None:
            made[i, runner_up[i]] = 1.0 - gap
        made[i, token] = 1.0
    return made


@pytest.mark.parametrize(("gap", "near"), [(0.0005, True), (0.002, False)])
def test_first_difference_and_its_gap(gap, near):
    cpu, gpu = (1, 2, 3, 4), (1, 2, 5, 6)
    mine = rows(cpu, (0, 0, 5, 0), gap)
    split = tool.split_of("p", cpu, gpu, mine, rows((1, 2, 5, 4)))
    assert (split.position, split.cpu_token, split.gpu_token) == (2, 3, 5)
    assert split.gap == pytest.approx(gap, abs=1e-6)
    assert split.is_near_tie is near
    assert (split.behind, split.differ) == (1, 0)


def test_positions_behind_a_difference_are_forced_and_counted():
    cpu, gpu = (1, 2, 3, 4), (0, 2, 3, 4)
    split = tool.split_of("p", cpu, gpu, rows(cpu, (0, 5, 5, 5), 0.25), rows((0, 2, 5, 5)))
    assert (split.position, split.behind, split.differ) == (0, 3, 2)
    assert split.largest_gap == pytest.approx(0.25)


def test_perplexity_of_known_probabilities():
    text = (0, 1, 2)
    half = np.log(np.array([[0.25, 0.5, 0.25], [0.25, 0.25, 0.5], [1, 1, 1]], dtype=np.float32))
    quarter = np.log(np.array([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25], [1, 1, 1]], dtype=np.float32))
    half[2] = quarter[2] = (0, 1, 2)  # behind the text: in no perplexity
    found = tool.perplexity([text], [half], [quarter])
    assert (found.tokens, found.cpu, found.gpu) == (2, pytest.approx(2), pytest.approx(4))
    assert found.relative == pytest.approx(1)


def test_logits_that_are_no_numbers_are_counted_and_a_fault():
    text, good = (0, 1, 2), np.log(np.full((3, 3), 1 / 3, dtype=np.float32))
    bad = good.copy()
    bad[1] = np.nan
    found = tool.perplexity([text], [good], [bad])
    assert (found.tokens, found.cpu_broken, found.gpu_broken) == (1, 0, 1)
    assert found.gpu == pytest.approx(3)
    assert tool.perplexity([text], [good], [good * np.nan]).tokens == 0
    arm = tool.Arm("T", "exact", 2, 2, 80, (), found, replace(found, gpu_broken=2), 1.0)
    assert arm.faults == ("T, exact: logits of 3 tokens are no numbers on the GPU",)


def test_what_falls_short():
    same = tool.Perplexity(100, 1.5, 1.5, 0.0, 0.0, 0.0, 0, 0)
    split = tool.Split("p", 2, 3, 5, 1e-4, 4, 0, 0.0)
    arm = tool.Arm("T", "exact", 2, 1, 80, (split,), same, replace(same, relative=0.1), 1.0)
    assert arm.faults == ()
    worse = replace(arm, splits=(replace(split, gap=2e-3),), chat=replace(same, relative=-2e-3))
    assert worse.faults == (
        "T, exact: p parts at a gap of 2.0e-03",
        "T, exact: perplexity differs by -2.0e-03",
    )


def test_the_page_names_what_was_found():
    same = tool.Perplexity(100, 1.5, 1.5, 2e-4, 1e-4, 0.01, 0, 0)
    split = tool.Split("p", 2, 3, 5, 1e-4, 4, 1, 0.002)
    arm = tool.as_dict(tool.Arm("T", "exact", 2, 1, 80, (split,), same, same, 1.0))
    row = tool.row(arm)
    delta = "+2.0e-04 ± 1e-04"
    assert (
        row == f"| T, exact | 1 of 2 | 1 of 1 | 1.0e-04 | 1 of 4 | 1.5000 | {delta} | {delta} | 1.0e-02 |  |"
    )


def test_texts_are_longer_than_a_micro_batch():
    texts = tool.load_texts(tool.REFERENCES, 3)
    assert len(texts.prompts) == 6
    assert min(len(text) for text in texts.chat + texts.prose) > tool.UBATCH
    assert all(text[0] == 0 for text in texts.chat)
