"""Python's fuzz targets: a function of bytes that parses them, and says no only in the way it is meant to."""

from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from random import Random

from pylucebox.core.errors import LuceboxError
from pylucebox.formats.gguf_reader import parse_header
from pylucebox.formats.model_keys import check_keys
from pylucebox.formats.safetensors_reader import parse_safetensors_header
from pylucebox.source.lock import Lock, parse_manifest
from pylucebox.source.series import Patch, parse_series

CORPUS = Path(__file__).parent / "corpus"
NAME = Path("fuzzed")
INTERESTING = (
    0,
    1,
    2,
    3,
    4,
    8,
    9,
    31,
    32,
    33,
    39,
    63,
    64,
    100,
    105,
    107,
    127,
    250,
    255,
    2**15,
    2**16,
    2**31 - 1,
)
HUGE = (2**31, 2**32 - 1, 2**42 + 1, 2**63 - 1, 2**63, 2**64 - 1)
WORDS = (
    *(b"[", b"]", b"{", b"}", b'"', b",", b":", b"-", b"1e999", b"NaN", b"null", b"true", b"\\u0000", b"\n"),
    *(
        b"../",
        b"/",
        b"\0",
        b"\xff",
        b"\xf0\x9f\x98\x80",
        b"@@ -1,9 +1,9 @@",
        b"+++ b/../x",
        b"--- a/",
        b"inf",
    ),
    *(b"dtype", b"shape", b"data_offsets", b"__metadata__", b"general.alignment", b"deepseek4.block_count"),
)


def read_gguf(data: bytes) -> None:
    check_keys(parse_header(NAME, BytesIO(data), len(data)))


def read_safetensors(data: bytes) -> None:
    parse_safetensors_header(NAME, BytesIO(data), len(data))


def read_lock(data: bytes) -> None:
    """A lock or a manifest; what their readers turn into an error is meant to come out of here."""
    try:
        text = data.decode()
        parse_manifest(text) if text[:1] in "0123456789abcdef" else Lock.parse(text)
    except (KeyError, TypeError, ValueError, RecursionError):
        pass


def read_series(data: bytes) -> None:
    """A series, and the same text as a patch."""
    try:
        text = data.decode(errors="replace")
        Patch.parse(NAME, text)
        parse_series(text)
    except ValueError:
        pass


TARGETS: dict[str, Callable[[bytes], None]] = {
    "gguf": read_gguf,
    "safetensors": read_safetensors,
    "lock": read_lock,
    "series": read_series,
}


def check(name: str, data: bytes) -> None:
    """Parse once. Raises AssertionError for an error of the wrong form, and whatever was not foreseen."""
    try:
        TARGETS[name](data)
    except LuceboxError as refused:
        assert refused.message.startswith("fuzzed: ") and "\n" not in refused.message, refused.message
        assert refused.hint, refused.message


def seeds(name: str) -> list[bytes]:
    """The committed corpus of a target."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def mutations(name: str, seed: int) -> Iterator[bytes]:
    """Yield inputs without end: one to six changes of a file of the corpus. Same seed, same inputs."""
    random, corpus = Random(seed), seeds(name)
    while True:
        data = bytearray(random.choice(corpus))
        for _ in range(random.randint(1, 6)):
            change(data, random, corpus)
        yield bytes(data)


def change(data: bytearray, random: Random, corpus: list[bytes]) -> None:
    """Change `data` in one place."""
    place = random.randrange(len(data) + 1)
    match random.randrange(9):
        case 0 if place < len(data):
            data[place] ^= 1 << random.randrange(8)
        case 1 if place < len(data):
            data[place] = random.randrange(256)
        case 2:
            data[place : place + 4] = random.choice((*INTERESTING, *HUGE[:2])).to_bytes(4, "little")
        case 3:
            data[place : place + 8] = random.choice((*INTERESTING, *HUGE)).to_bytes(8, "little")
        case 4:
            del data[place : place + random.randint(1, 16)]
        case 5:
            data[place:place] = data[place : place + random.randint(1, 64)]
        case 6:
            other = random.choice(corpus)
            start = random.randrange(len(other) + 1)
            data[place : place + 32] = other[start : start + 32]
        case 7:
            data[place:place] = random.choice(WORDS) * random.choice((1, 1, 1, 2, 50))
        case 8:
            del data[place:]
