"""Compares a served model with shipped references: logits, greedy texts, answers, drafts."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pylucebox.core import processes
from pylucebox.core.errors import IntegrityError, RequestError
from pylucebox.runtime.client import Client, Timings

SETS = ("gsm", "math")  # the prose prompts are near ties: two right programs part ways there
EXACT_ARGUMENTS = ("-ctk", "f32", "-ctv", "f32", "-fa", "off")
ONE_THREAD = ("-t", "1", "-tb", "1")  # several spin against each other when the machine has other work
MAX_TOKENS = 256
END_TOKEN = 1


@dataclass(frozen=True)
class Prompt:
    """One prompt with the greedy text and token ids of the reference and the right answer."""

    id: str
    kind: str
    text: str
    tokens: int
    answer: str
    output: str
    output_ids: tuple[int, ...]


@dataclass(frozen=True)
class Drafting:
    """What a drafter proposed and had accepted, by position in the cycle."""

    cycles: int
    drafted: int
    accepted: int
    by_position: tuple[int, ...]

    def __add__(self, other: "Drafting") -> "Drafting":
        size = max(len(self.by_position), len(other.by_position))
        mine, theirs = ((d.by_position + (0,) * size)[:size] for d in (self, other))
        return Drafting(
            self.cycles + other.cycles,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
            tuple(a + b for a, b in zip(mine, theirs, strict=True)),
        )


NO_DRAFTING = Drafting(0, 0, 0, ())


@dataclass(frozen=True)
class Answer:
    """What the server said to a prompt. drafting: from its counters, so no request may run beside."""

    prompt: Prompt
    text: str
    token_ids: tuple[int, ...]
    timings: Timings
    drafting: Drafting

    @property
    def is_right(self) -> bool:
        return self.text.rpartition("####")[2].strip() == self.prompt.answer

    @property
    def is_identical(self) -> bool:
        return self.text == self.prompt.output and self.token_ids == self.prompt.output_ids


@dataclass(frozen=True)
class LogitsCheck:
    """largest_difference: over the first new token of all prompts. long_*: over one long text."""

    prompts: int
    largest_difference: float
    long_tokens: int
    long_argmax_equal: int
    long_last_difference: float


def load_prompts(folder: Path, kinds: Sequence[str] = SETS) -> list[Prompt]:
    """Read the prompt files of `folder`. Raises IntegrityError for a missing file or field."""
    prompts = []
    for kind in kinds:
        for row in _rows(folder / f"{kind}.jsonl"):
            try:
                ids, answer = tuple(row["ref_output_ids"]), str(row["answer"])
                text, tokens = str(row["prompt"]), int(row["prompt_tokens"])
                prompts.append(Prompt(row["id"], kind, text, tokens, answer, row["ref_output"], ids))
            except KeyError as missing:
                raise IntegrityError(f"{folder / kind}.jsonl: field {missing} is missing") from missing
    return prompts


def load_drafting(folder: Path) -> dict[str, Drafting]:
    """Return what the drafter of the reference did, by prompt id, counted as the server counts.

    The reference goes on behind a matching end token. The server stops at it, and counts it as accepted only
    when it is the last draft of its cycle.
    """
    found = {}
    for row in _rows(folder / "draft_reference.jsonl"):
        total = NO_DRAFTING
        for cycle in row["cycles"]:
            drafts, accepted = cycle["draft"], cycle["accepted"]
            if END_TOKEN in drafts[:accepted]:
                end = drafts.index(END_TOKEN)
                accepted = end + (end == len(drafts) - 1)
            hits = tuple(int(i < accepted) for i in range(len(drafts)))
            total += Drafting(1, len(drafts), accepted, hits)
        found[str(row["id"])] = total
    return found


def ask(client: Client, prompt: Prompt, *, drafting: bool = False) -> Answer:
    """Continue one prompt greedily. Raises RequestError when the server tokenizes it differently."""
    before = client.draft_counters() if drafting else None
    reply = client.complete(prompt.text, temperature=0, n_predict=MAX_TOKENS, cache_prompt=False)
    if reply.timings.prompt_tokens != prompt.tokens:
        made = reply.timings.prompt_tokens
        raise RequestError(f"{prompt.id}: the server makes {made} tokens of it, not {prompt.tokens}")
    count = NO_DRAFTING
    if before:
        now = client.draft_counters().since(before)
        count = Drafting(now.cycles, now.drafted, now.accepted, now.accepted_by_position)
    return Answer(prompt, reply.text, reply.token_ids, reply.timings, count)


def ask_all(
    client: Client,
    prompts: Sequence[Prompt],
    *,
    drafting: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Answer]:
    """Continue all prompts, one after the other."""
    answers = []
    for index, prompt in enumerate(prompts):
        answers.append(ask(client, prompt, drafting=drafting))
        if progress:
            progress(index + 1, len(prompts))
    return answers


def check_logits(program: Path, model: Path, folder: Path, work_dir: Path, cache_type: str) -> LogitsCheck:
    """Evaluate the reference's token ids with lucebox-logits and compare logits.

    program: lucebox-logits of the build. cache_type: "f32" for the exact path, "f16" as served by default.
    """
    with np.load(folder / "reference.npz") as reference:
        names = [name.removeprefix("prompt_ids_") for name in reference if name.startswith("prompt_ids_")]
        sequences = [reference[f"prompt_ids_{name}"] for name in names] + [reference["long_ids"]]
        logits = _evaluate(
            program, model, sequences, work_dir, cache_type, len(reference["long_logits_last"])
        )
        differences = [
            float(np.abs(rows[-1] - reference[f"logits_{name}"]).max())
            for name, rows in zip(names, logits[:-1], strict=True)
        ]
        long = logits[-1]
        return LogitsCheck(
            prompts=len(names),
            largest_difference=max(differences),
            long_tokens=len(long),
            long_argmax_equal=int((long.argmax(axis=1) == reference["long_argmax"]).sum()),
            long_last_difference=float(np.abs(long[-1] - reference["long_logits_last"]).max()),
        )


def _evaluate(
    program: Path,
    model: Path,
    sequences: Sequence[np.ndarray],
    work_dir: Path,
    cache_type: str,
    vocab_size: int,
) -> list[np.ndarray]:
    """Return float32 logits of shape (tokens, vocab_size) for each sequence of token ids."""
    ids, out = work_dir / f"{model.stem}.ids", work_dir / f"{model.stem}.logits"
    ids.write_text("".join(" ".join(map(str, sequence)) + "\n" for sequence in sequences))
    try:
        argv: list[str | Path] = [program, model, ids, out, cache_type]
        processes.run(argv, log_path=work_dir / f"{model.stem}.log", error=RequestError)
        rows = np.fromfile(out, dtype="<f4").reshape(-1, vocab_size)
    finally:
        out.unlink(missing_ok=True)
    ends = np.cumsum([len(sequence) for sequence in sequences])
    if len(rows) != ends[-1]:
        raise IntegrityError(f"{program.name}: {len(rows)} rows of logits for {ends[-1]} tokens")
    return list(np.split(rows, ends[:-1]))


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{path}: unreadable reference: {error}") from error
