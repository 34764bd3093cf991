"""The page of tools/check_gpu_fidelity.py."""

from typing import Any

COLUMNS = (
    "type",
    "texts identical",
    "near ties",
    "largest gap",
    "behind differ",
    "perplexity, chat",
    "GPU",
    "GPU, prose",
    "logit difference",
    "no numbers",
)
ABOUT = """\
Greedy texts of {prompts} prompts, token for token. Near tie: the CPU's logits of the two tokens lie within
{near_tie:.0e} of the row's range; every first difference of a ROCmFPX type has to be one. Behind a first
difference the CPU's text is forced on both sides, one token at a time, and positions where the GPU likes
another token best are counted. Perplexity relative to the CPU's, with its standard error, over {chat}
tokens of chat, which the model was trained for, and {prose} of prose, held out (perplexity there is in the
hundreds), in micro-batches of {ubatch}; on chat, ROCmFPX types have to stay within {perplexity:.0e}. Logit
difference: the largest, relative to the row's range; where the router's choice of an expert falls the other
way, it is large. No numbers: tokens, of both sides, whose logits are none; left out of the rest. Upstream's
types run upstream's kernels: a yardstick, without limits. `exact`: F32 cache, no flash attention.
"""


def row(arm: dict[str, Any]) -> str:
    """Return the table row of one arm."""
    splits = arm["splits"]
    gap = f"{max(s['gap'] for s in splits):.1e}" if splits else ""
    behind = f"{sum(s['differ'] for s in splits)} of {sum(s['behind'] for s in splits)}" if splits else ""
    chat, prose = arm["chat"], arm["prose"]
    cells = (
        f"{arm['type']}, {arm['mode']}",
        f"{arm['identical']} of {arm['prompts']}",
        f"{sum(s['near_tie'] for s in splits)} of {len(splits)}" if splits else "",
        gap,
        behind,
        f"{chat['cpu']:.4f}",
        f"{chat['relative']:+.1e} ± {chat['error']:.0e}",
        f"{prose['relative']:+.1e} ± {prose['error']:.0e}",
        f"{max(chat['logit_difference'], prose['logit_difference']):.1e}",
        f"{sum(texts[f'{side}_broken'] for texts in (chat, prose) for side in ('cpu', 'gpu')) or ''}",
    )
    return f"| {' | '.join(cells)} |"


def as_markdown(result: dict[str, Any]) -> str:
    """Return the result as a page."""
    machine, build = result["machine"], result["build"]
    devices = "; ".join(result["devices"]) or "no GPU: the CPU against itself"
    chat, prose = (result["arms"][0][kind]["tokens"] for kind in ("chat", "prose"))
    limits = result["limits"]
    about = ABOUT.format(
        prompts=result["arms"][0]["prompts"],
        near_tie=limits["near_tie"],
        perplexity=limits["perplexity"],
        ubatch=limits["ubatch"],
        chat=chat,
        prose=prose,
    )
    lines = [
        "# tiny-ds4 on a GPU against the CPU",
        "",
        f"{devices}; {machine['cpu']}, {machine['cores']} cores, {machine['os']};",
        f"build {build['target']}, receipt `{build['id'][:12]}`; {result['date']};",
        f"`{result['command']}`.",
        "Made by `tools/check_gpu_fidelity.py`; the numbers are in the JSON file beside this page.",
        "",
        about,
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
        *map(row, result["arms"]),
        "",
        "Fell short: " + ("; ".join(result["faults"]) or "nothing") + ".",
    ]
    return "\n".join(lines) + "\n"
