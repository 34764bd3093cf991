"""A folder of result files as one page of tables and one picture, or more, a file."""

from pathlib import Path

from pylucebox.core.errors import RequestError
from pylucebox.measure.render import markdown, pictures
from pylucebox.measure.report import Result, load, write_text

PAGE = "table.md"


def write_report(folder: Path, out: Path, root: Path) -> tuple[Path, ...]:
    """Write table.md and the pictures of every result file in `folder` to `out`; return their paths.

    root: repository against which staleness is judged. Raises RequestError when there is no result file.
    """
    names = sorted(folder.glob("*.json"))
    if not names:
        raise RequestError(f"{folder}: no result files (*.json) in it", hint="lucebox bench … --out FILE")
    results = [(name, load(name)) for name in names]
    written, parts = [], []
    for name, result in results:
        drawn = write_pictures(result, name.stem, out, root)
        images = "\n".join(f"![{result.what}]({path.name})" for path in drawn)
        parts.append(f"{markdown(result, result.source.is_stale(root))}\n{images}\n")
        written += drawn
    write_text(out / PAGE, "\n".join(parts))
    return (out / PAGE, *written)


def write_pictures(result: Result, stem: str, folder: Path, root: Path) -> list[Path]:
    """Write a result's pictures as STEM.svg, or STEM-KIND.svg where it has several; return their paths."""
    drawn = picture_files(result, stem, root)
    for name, text in drawn.items():
        write_text(folder / name, text)
    return [folder / name for name in drawn]


def picture_files(result: Result, stem: str, root: Path) -> dict[str, str]:
    """Return the pictures of a result by file name."""
    drawn = pictures(result, result.source.is_stale(root))
    return {f"{stem}-{kind}.svg" if kind else f"{stem}.svg": text for kind, text in drawn.items()}
