"""Tables and texts as Markdown."""

from collections.abc import Iterable, Sequence

from steptrace.format import NOT_MEASURED


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table, its line breaks included; None is "not measured". "Nothing." without rows."""
    lines = [[NOT_MEASURED if cell is None else clean(str(cell)).replace("|", "/") for cell in row] for row in rows]
    body = [list(head), ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in body) if lines else "Nothing.\n"


def clean(text: str) -> str:
    """Text of somebody else on one line; outside of code, `<` begins no HTML."""
    parts = " ".join(text.split()).split("`")
    return "`".join(part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(parts))
