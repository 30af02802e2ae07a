"""Bounds on a trace's times, sizes, depths and texts: traces are untrusted input.

The reader applies them once, and notes the number of events it leaves out, so that all later code computes with finite
numbers whose sums fit in int64.
"""

import os
import re
from pathlib import Path
from typing import Any, Final

#: A day, longer than any profile: a hundred thousand times this still fits in int64.
LONGEST_NS: Final = 86_400 * 10**9
#: Latest time of a file, in 2116: the difference of any two times fits in int64.
LATEST_NS: Final = 1 << 62
#: Most bytes or elements of one copy or tensor: a pebibyte.
LARGEST: Final = 1 << 50
#: Most ranks of a job, blocks along one side of a grid, and other counts.
MOST: Final = 1 << 31
#: Most GPUs of one trace: a process has up to 16, and each has its own figures for every step.
MOST_DEVICES: Final = 256
#: Most characters of a name; kernels of template libraries have a few thousand.
LONGEST_NAME: Final = 1 << 14

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def plain_text(text: str) -> str:
    """A text of a trace, cut to its bound, with control characters (terminal commands) replaced by U+FFFD."""
    if text.isascii() and text.isprintable() and len(text) <= LONGEST_NAME:
        return text
    text = _CONTROL.sub("\ufffd", text[: LONGEST_NAME + 1])
    return text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "…"


def path_text(path: str | Path) -> str:
    """A path as printable text, whatever bytes the file's name has."""
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
