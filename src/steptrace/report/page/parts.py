"""What sections of a page are made of, beside tables and facts: sentences, pictures, bars, folded parts."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from steptrace.report.draw import Piece, bar_cell
from steptrace.report.page.markup import Definition, Html, inline_code, render


@dataclass(frozen=True)
class Explained:
    """A piece of a page and what the figures on it mean."""

    html: Html | str
    meanings: Sequence[Definition] = ()


#: What a section is made of, in its order.
Parts = Sequence[Explained]


def note(text: str) -> Explained:
    """A sentence."""
    return Explained(Html('<p class="note">{}</p>').format(inline_code(text)))


def subheading(text: str) -> Explained:
    """A heading within a section."""
    return Explained(Html("<h3>{}</h3>").format(text))


def folded(title: str, body: Explained) -> Explained:
    """A part of a section behind its title; nothing if the part is empty."""
    html = Html("<details><summary>{}</summary>\n{}\n</details>").format(title, body.html)
    return Explained(html if body.html else "", body.meanings)


def figure(svg: Markup | None, title: str, caption: str = "") -> Explained:
    """A picture with its title and a caption; nothing without it."""
    if svg is None:
        return Explained("")
    below = Html("<figcaption>{}</figcaption>").format(caption) if caption else ""
    html = Html('<div class="charts"><figure><h3>{}</h3>{}{}</figure></div>')
    return Explained(html.format(title, svg, below))


def keyed_bar(pieces: Sequence[Piece]) -> Html:
    """One stacked bar, and below it what each piece is; nothing without pieces."""
    shown = [piece for piece in pieces if piece.size]
    if not shown:
        return Html("")
    key = Html('<span class="key {}">{}</span>')
    keys = Html("").join(key.format(piece.colour, piece.words) for piece in shown)
    return Html('<div class="goes">{}{}</div>').format(bar_cell(shown, sum(piece.size for piece in shown)), keys)


def section(id_: str, heading: str, parts: Parts, *, level: int = 2, folded: bool = False) -> Html:
    """A section of a page: its heading, its parts, and what their figures mean, each once."""
    meanings = {item.term: item for part in parts for item in part.meanings}
    body = Html("").join(part.html for part in parts)
    return render(
        "page/section", id=id_, heading=heading, level=level, folded=folded, meanings=[*meanings.values()], body=body
    )
