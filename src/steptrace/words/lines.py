"""Lines of text with their roles, which a terminal shows by colour."""

from typing import Literal, NamedTuple

#: The role of a line: the answer, its reason, what to do first, what to know of the record, or none of these.
Look = Literal["answer", "why", "first", "note", "plain"]


class TextLine(NamedTuple):
    """A line of text, and its role."""

    text: str
    look: Look = "plain"


def as_text(lines: "list[TextLine]") -> str:
    """The lines as plain text."""
    return "\n".join(line.text for line in lines)
