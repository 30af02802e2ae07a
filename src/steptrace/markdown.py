"""Tables and texts as Markdown."""

from collections.abc import Iterable, Sequence

from steptrace.format import NOT_MEASURED


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table, its line breaks included; None is "not measured". "Nothing." without rows."""
    lines = [[_cell(NOT_MEASURED if cell is None else str(cell)) for cell in row] for row in rows]
    body = [list(map(_cell, head)), ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in body) if lines else "Nothing.\n"


def _cell(text: str) -> str:
    """A cell's text without the character that ends a cell."""
    return clean(text).replace("|", "/")


def clean(text: str) -> str:
    """Text of somebody else on one line; outside of code, `<` begins no HTML."""
    parts = " ".join(text.split()).split("`")
    # A backtick that no other one follows begins no code.
    last = len(parts) - 1
    return "`".join(
        part if place % 2 and place < last else part.replace("<", "&lt;") for place, part in enumerate(parts)
    )
