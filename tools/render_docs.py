"""Write what the documents take from elsewhere: `python tools/render_docs.py [--check]`.

Tables and pictures of docs/results/*.json go between `<!-- result: FILE -->` and `<!-- /result -->` in
README.md and docs/*.md; FILE is a name in docs/results. docs/commands.md is made from the commands' help,
docs/device-code/kernels.md from the record beside it.
With --check nothing is written, and files that differ from what would be written are named: exit code 1.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from device_code import record as device_code

from pylucebox.cli.main import KNOWN_ENVIRONMENT, group
from pylucebox.core.errors import LuceboxError
from pylucebox.measure.folder import picture_files
from pylucebox.measure.render import markdown
from pylucebox.measure.report import load, write_text

ROOT = Path(__file__).resolve().parent.parent
MARKED = re.compile(r"^(<!-- result: (\S+) -->\n).*?^(<!-- /result -->)$", re.DOTALL | re.MULTILINE)
OPENING = re.compile(r"^<!-- result: ", re.MULTILINE)
CLOSING = re.compile(r"^<!-- /result -->", re.MULTILINE)
HELP_WIDTH = 100


def rendered_files(root: Path) -> dict[Path, str]:
    """Return every file that this tool writes, with the text it should have."""
    results = root / "docs/results"
    files: dict[Path, str] = {}
    for name in sorted(results.glob("*.json")):
        pictures = picture_files(load(name), name.stem, root)
        files.update({results / picture: text for picture, text in pictures.items()})
    for document in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        if document.is_file() and OPENING.search(document.read_text(encoding="utf-8")):
            files[document] = render_document(document, root)
    record = root / "docs/device-code/kernels.json"
    if record.is_file():
        files[record.with_suffix(".md")] = device_code.page(device_code.load(record))
    return files


def render_document(document: Path, root: Path) -> str:
    """Return a document's text with every marked section made anew. Raises ValueError on unpaired marks."""
    text = document.read_text(encoding="utf-8")
    if not len(MARKED.findall(text)) == len(OPENING.findall(text)) == len(CLOSING.findall(text)):
        raise ValueError(f"{document}: '<!-- result: FILE -->' and '<!-- /result -->' do not pair")

    def section(match: re.Match[str]) -> str:
        path = root / "docs/results" / match.group(2)
        result = load(path)
        folder = os.path.relpath(path.parent, document.parent)
        names = picture_files(result, path.stem, root)
        images = "\n".join(f"![{result.what}]({folder}/{name})" for name in names)
        table = markdown(result, result.source.is_stale(root))
        return f"{match.group(1)}\n{table}\n{images}\n\n{match.group(3)}"

    return MARKED.sub(section, text)


def commands_page() -> str:
    """Return docs/commands.md: the help of every command, as the program prints it."""
    parts = ["# Commands", "Made from `--help` by `tools/render_docs.py`: edit the commands, not this page."]
    for words, command, context in walk_commands(group, "lucebox"):
        context.terminal_width = context.max_content_width = HELP_WIDTH
        parts.append(f"{'#' * (len(words) + 1)} {' '.join(words)}\n\n```\n{command.get_help(context)}\n```")
    parts += ["## Environment", environment()]
    parts += ["## Exit codes", exit_codes(), "`lucebox run` passes on the server's own exit code."]
    return "\n\n".join(parts) + "\n"


def environment() -> str:
    """Return the table of environment variables."""
    known = {**KNOWN_ENVIRONMENT, "NO_COLOR": "Set to anything: no colour, unless --color asks for it."}
    rows = [f"| `{name}` | {what} |" for name, what in known.items()]
    return "\n".join(["| variable | meaning |", "| --- | --- |", *rows])


def exit_codes() -> str:
    """Return the table of exit codes: click's, the shell's for Ctrl-C, and those of our errors."""
    codes = {0: "Done.", 2: "Wrong usage: an unknown command or option, or a value it does not take."}
    for error in LuceboxError.__subclasses__():
        codes[error.exit_code] = (error.__doc__ or "").strip()
    codes[130] = "Interrupted with Ctrl-C."
    rows = [f"| {code} | {codes[code]} |" for code in sorted(codes)]
    return "\n".join(["| exit code | meaning |", "| --- | --- |", *rows])


def walk_commands(
    command: click.Command, name: str, parent: click.Context | None = None
) -> Iterator[tuple[list[str], click.Command, click.Context]]:
    """Yield a command and all below it: words typed, command, context."""
    context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    yield context.command_path.split(), command, context
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            inner = command.get_command(context, below)
            assert inner is not None
            yield from walk_commands(inner, below, context)


def main(words: list[str]) -> int:
    if words not in ([], ["--check"]):  # a slip would rewrite every page
        print("usage: python tools/render_docs.py [--check]", file=sys.stderr)
        return 2
    try:
        files = {**rendered_files(ROOT), ROOT / "docs/commands.md": commands_page()}
    except (LuceboxError, ValueError) as bad:
        print(bad, file=sys.stderr)
        return 1
    differing = [p for p, text in files.items() if not p.is_file() or p.read_text(encoding="utf-8") != text]
    if words:
        for path in differing:
            print(f"{path.relative_to(ROOT)} is out of date: run `python tools/render_docs.py`")
        return 1 if differing else 0
    for path in differing:
        write_text(path, files[path])
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
