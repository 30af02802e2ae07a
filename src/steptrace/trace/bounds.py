"""What of a trace is taken as it is: a trace is a file from a stranger, so times, sizes, depths and texts have bounds.

The reader applies them once, counts what it leaves out in a note, and everything after it computes with finite numbers
whose sums stay within int64.
"""

import os
import re
from pathlib import Path
from typing import Any, Final

#: No profile lasts a day; with this, a hundred thousand times the length of a trace is still an int64.
LONGEST_NS: Final = 86_400 * 10**9
#: Times of a file lie below this, so that the difference of any two is an int64: the year 2116.
LATEST_NS: Final = 1 << 62
#: Bytes and elements, of one copy or tensor: a pebibyte.
LARGEST: Final = 1 << 50
#: Ranks of a job, blocks along one side of a grid, and other counts.
MOST: Final = 1 << 31
#: GPUs of one trace: a process has up to 16, and each has its own figures for every step.
MOST_DEVICES: Final = 256
#: Characters of a name. Kernels of template libraries have a few thousand.
LONGEST_NAME: Final = 1 << 14

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def plain_text(text: str) -> str:
    """A text of a trace with control characters as U+FFFD (some command a terminal), and cut where it has no end."""
    if text.isascii() and text.isprintable() and len(text) <= LONGEST_NAME:
        return text
    text = _CONTROL.sub("\ufffd", text[: LONGEST_NAME + 1])
    return text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "…"


def path_text(path: str | Path) -> str:
    """A path as a text that can be shown and written, whatever bytes the file's name has."""
    return plain_text(os.fsencode(path).decode(errors="replace"))


def within(value: Any, low: int, high: int) -> int | None:
    """`value` if it is an integer in `[low, high)`, else None."""
    return value if type(value) is int and low <= value < high else None


def plain_values(given: dict[Any, Any]) -> dict[str, Any]:
    """The texts and numbers of a JSON object that are within bounds, without the rest."""
    plain: dict[str, Any] = {}
    for key, value in given.items():
        if isinstance(value, str):
            plain[plain_text(key)] = plain_text(value)
        elif isinstance(value, float) or within(value, -LARGEST, LARGEST) is not None:
            plain[plain_text(key)] = value
    return plain
