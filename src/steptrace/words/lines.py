"""Lines of text with their roles, which a terminal shows by colour, and how many of them fit on its screen."""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

#: The most lines of a command's result on a terminal: a screen.
SCREEN: Final = 40

#: The role of a line: the answer, its reason, what to do first, what to know of the record, or none of these.
Look = Literal["answer", "why", "first", "note", "plain"]


class TextLine(NamedTuple):
    """A line of text, and its role."""

    text: str
    look: Look = "plain"


def as_text(lines: "list[TextLine]") -> str:
    """The lines as plain text."""
    return "\n".join(line.text for line in lines)


def rows_shown(lengths: Sequence[int], free: int) -> list[int]:
    """How many rows of each table are shown in `free` lines: of each one row, then of all the same number.

    Args:
        lengths: how many rows each table has.
        free: the lines for all rows; one row of each table is shown even if there are fewer.
    """
    shown = [min(length, 1) for length in lengths]
    left = free - sum(shown)
    while left > 0 and shown != list(lengths):
        for place, length in enumerate(lengths):
            if shown[place] < length and left > 0:
                shown[place] += 1
                left -= 1
    return shown
