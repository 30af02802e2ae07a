"""What sections of a trace's page are made of, beside tables and facts: charts, sentences, folded tables."""

from collections.abc import Mapping, Sequence

from steptrace.documents.base import Document
from steptrace.report.draw.svg import InlineSvg
from steptrace.report.page.markup import render
from steptrace.report.page.table import Explained, listing

#: What a section is made of, in its order.
Parts = Sequence[Explained]


def chart(svg: InlineSvg | None, title: str, caption: str = "") -> Explained:
    """A chart with its title; nothing without it."""
    return Explained(render("page/charts", figures=[(svg, title, caption)]) if svg else "")


def note(text: str) -> Explained:
    """A sentence."""
    return Explained(render("page/note", text=text))


def folded(
    title: str,
    rows: Sequence[Document],
    names: Sequence[str] = (),
    most: int = 12,
    words: Mapping[str, str] | None = None,
) -> list[Explained]:
    """A table behind its title; none without rows. `words` stand for some names."""
    if not rows:
        return []
    table = listing(rows, names, most=most, words=words)
    return [Explained(render("page/folded", title=title, body=table.html), table.meanings)]
