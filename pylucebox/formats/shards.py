"""Models that are split over several files, NAME-00001-of-00003.gguf and so on."""

import re
from pathlib import Path

from pylucebox.core.errors import RequestError

MAX_SHARDS = 9999
LISTED = 10  # names shown in one message
SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")


def model_stem(path: Path) -> str:
    """Return the model's name: the file's without its ending and shard number."""
    return SHARD.sub("", path.stem)


def find_shards(path: Path) -> tuple[Path, ...]:
    """Return all files of a model. Raises RequestError when one is missing or `path` is not the first."""
    shard = SHARD.search(path.stem)
    if shard is None:
        return (path,)
    if int(shard[1]) != 1:
        raise RequestError(f"{path}: shard {int(shard[1])} of {int(shard[2])}", hint="give the first shard")
    count = int(shard[2])
    if not 1 <= count <= MAX_SHARDS:
        raise RequestError(f"{path}: says it is one of {count} files", hint="give the model's first file")
    paths = [path.with_name(f"{model_stem(path)}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]
    if absent := [p.name for p in paths if not p.is_file()]:
        more = f" and {len(absent) - LISTED} more" if len(absent) > LISTED else ""
        raise RequestError(
            f"{path.parent}: missing {', '.join(absent[:LISTED])}{more}", hint="fetch every shard"
        )
    return tuple(paths)
