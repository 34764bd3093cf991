"""The texts of tools/check_gpu_fidelity.py, as token ids."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pylucebox.measure.fidelity import SETS

TOGETHER = 10  # documents a text: 400 to 800 tokens

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Texts:
    """What is evaluated. prompts: id and token ids. chat: texts of the trained kind, prose: held out."""

    prompts: tuple[tuple[str, Ids], ...]
    chat: tuple[Ids, ...]
    prose: tuple[Ids, ...]


def load_texts(folder: Path, prompts: int) -> Texts:
    """Read the shipped prompts, `prompts` of each kind, and join prompts and answers, TOGETHER at a time.

    The model was trained on documents behind each other. Prose is held out, and full of near ties.
    """
    ids = {record["id"]: tuple(record["prompt_ids"]) for record in _records(folder / "prompt_ids.jsonl")}
    asked: list[tuple[str, Ids]] = []
    chat: list[Ids] = []
    for kind in SETS:
        records = _records(folder / f"{kind}.jsonl")
        asked += [(r["id"], ids[r["id"]]) for r in records[:prompts]]
        documents = [ids[r["id"]] + tuple(r["ref_output_ids"]) for r in records]
        chat += [sum(documents[i : i + TOGETHER], ()) for i in range(0, len(documents), TOGETHER)]
    with np.load(folder / "reference.npz") as reference:
        prose = tuple(map(int, reference["long_ids"]))
    return Texts(tuple(asked), tuple(chat), (prose,))


def _records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
