"""Rules files: first match decides, every error names its line."""

from pathlib import Path

import pytest

from pylucebox.core.errors import RequestError
from pylucebox.formats.gguf_types import TYPES
from pylucebox.formats.rules import TypeRules, read_rules

SHAPES = {
    "token_embd.weight": (64, 256),
    "blk.0.attn_q_a.weight": (64, 256),
    "blk.0.ffn_down_exps.weight": (4, 256, 96),
    "blk.1.ffn_down_exps.weight": (4, 256, 96),
    "blk.1.hc_attn_fn.weight": (24, 1024),
}


def rules(folder: Path, text: str) -> TypeRules:
    path = folder / "my.rules"
    path.write_text(text)
    return read_rules(path)


def test_first_match_decides(tmp_path: Path) -> None:
    read = rules(
        tmp_path, "# comment\n\nblk\\.0\\..*exps = q8_0  # one layer\nffn_down = Q3_0_ROCMFPX\nembd=f16\n"
    )
    found = {name: (rule.type.name, rule.line) for name, rule in read.resolve(SHAPES).items()}
    assert found == {
        "blk.0.ffn_down_exps.weight": ("Q8_0", 3),
        "blk.1.ffn_down_exps.weight": ("Q3_0_ROCMFPX", 4),
        "token_embd.weight": ("F16", 5),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ffn_down q8_0\n", "my.rules:1: 'ffn_down q8_0' is not PATTERN = TYPE"),
        ("# x\n = q8_0\n", "my.rules:2: '= q8_0' is not PATTERN = TYPE"),
        ("ffn_down =\n", "my.rules:1: 'ffn_down =' is not PATTERN = TYPE"),
        ("\n\na( = q8_0\n", "my.rules:3: 'a(' is no regular expression: missing ), unterminated subpattern"),
        ("ffn = q2_0_rocmfp\n", "my.rules:1: no tensor type 'q2_0_rocmfp' (did you mean q2_0_rocmfp2?)"),
        ("ffn = q8_k\n", "my.rules:1: no tensor type 'q8_k' (did you mean"),
        ("ffn = i32\n", "my.rules:1: no tensor type 'i32'"),
        ("# nothing\n", "my.rules: holds no rule"),
    ],
)
def test_errors_of_reading_name_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RequestError) as failed:
        rules(tmp_path, text)
    assert message in failed.value.message and failed.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ffn_dwon_exps = q8_0\n", "my.rules:1: 'ffn_dwon_exps' matches no matrix of the model"),
        ("exps = q8_0\nffn_down = q6_k\n", "my.rules:2: 'ffn_down' is never used: line 1 takes all"),
        ("exps = q6_k\n", "my.rules:1: 'exps' cannot make blk.0.ffn_down_exps.weight Q6_K: rows of 96 are"),
    ],
)
def test_errors_of_matching_name_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RequestError) as failed:
        rules(tmp_path, text).resolve(SHAPES)
    assert message in failed.value.message


def test_a_pattern_without_match_gets_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as failed:
        rules(tmp_path, "ffn_dwon_exps = q8_0\n").resolve(SHAPES)
    assert failed.value.hint is not None and "(did you mean ffn_down_exps.weight?)" in failed.value.hint


def test_a_rule_for_protected_tensors_alone_is_refused(tmp_path: Path) -> None:
    read = rules(tmp_path, "hc_ = q8_0\n")
    wanted = read.resolve(SHAPES)
    read.require_effect(wanted, {"blk.1.hc_attn_fn.weight": TYPES["Q8_0"]})
    with pytest.raises(
        RequestError, match=r"'hc_' matches only tensors that stay as stored: blk\.1\.hc_attn_fn"
    ):
        read.require_effect(wanted, {"blk.1.hc_attn_fn.weight": TYPES["F32"]})
    everything = rules(tmp_path, ". = q8_0\n")
    given = {name: TYPES["F32" if "hc_" in name else "Q8_0"] for name in SHAPES}
    everything.require_effect(everything.resolve(SHAPES), given)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="absent: cannot be read"):
        read_rules(tmp_path / "absent")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(RequestError, match="is not UTF-8 text"):
        read_rules(tmp_path / "binary")
