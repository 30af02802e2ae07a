"""The parts of a page's sections: sentences, pictures, bars, folded parts; each with the meanings of its figures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from steptrace.documents.overview import part_name
from steptrace.documents.timeline import Timeline
from steptrace.report.charts.cells import Piece, bar_cell
from steptrace.report.charts.lanes import parts_to_key
from steptrace.report.charts.palette import colour_of
from steptrace.report.page.markup import Definition, Html, inline_code, render


@dataclass(frozen=True)
class Explained:
    """A piece of a page, and the meanings of the figures on it."""

    html: Html | str
    meanings: Sequence[Definition] = ()


#: The parts of a section, in order.
Parts = Sequence[Explained]


def note(text: str) -> Explained:
    """A sentence as a paragraph."""
    return Explained(Html('<p class="note">{}</p>').format(inline_code(text)))


def subheading(text: str) -> Explained:
    """A heading within a section."""
    return Explained(Html("<h3>{}</h3>").format(text))


def folded(title: str, body: Explained) -> Explained:
    """A part that its title unfolds; nothing if the part is empty."""
    html = Html("<details><summary>{}</summary>\n{}\n</details>").format(title, body.html)
    return Explained(html if body.html else "", body.meanings)


def picture(svg: Markup | None, title: str, caption: str = "") -> Explained:
    """A picture with its title and a caption; nothing if there is no picture."""
    if svg is None:
        return Explained("")
    below = Html("<figcaption>{}</figcaption>").format(caption) if caption else ""
    html = Html('<div class="charts"><figure><h3>{}</h3>{}{}</figure></div>')
    return Explained(html.format(title, svg, below))


def colour_keys(names: Mapping[str, str], colour: Callable[[str], str]) -> Html:
    """The key of the colours of parts; nothing without parts.

    Args:
        names: what the page calls each part, by the part's code.
        colour: the colour of a part.
    """
    key = Html('<span class="key {}">{}</span>')
    keys = Html("").join(key.format(colour(part), name) for part, name in names.items())
    return Html('<div class="goes">{}</div>').format(keys) if names else Html("")


def key_of_lanes(timeline: Timeline, keyed: Iterable[str]) -> Html:
    """The key of the lanes' colours that neither a name in them explains nor the key above, which has `keyed` parts."""
    return colour_keys({part: part_name(part) for part in parts_to_key(timeline, keyed)}, colour_of)


def wide_picture(svg: Markup, title: str, caption: str = "") -> Explained:
    """A picture as wide as the page, with a caption. Its title is not a heading."""
    below = Html('<p class="note">{}</p>').format(inline_code(caption)) if caption else ""
    return Explained(Html('<figure class="way">\n<figcaption>{}</figcaption>{}{}</figure>').format(title, svg, below))


def keyed_bar(pieces: Sequence[Piece]) -> Html:
    """One stacked bar, with the key of its pieces below it; nothing without pieces."""
    shown = [piece for piece in pieces if piece.size]
    if not shown:
        return Html("")
    key = Html('<span class="key {}">{}</span>')
    keys = Html("").join(key.format(piece.colour, piece.words) for piece in shown)
    return Html('<div class="goes">{}{}</div>').format(bar_cell(shown, sum(piece.size for piece in shown)), keys)


def section(id_: str, heading: str, parts: Parts, *, level: int = 2, folded: bool = False) -> Html:
    """A section of a page: its heading, its parts, and the meaning of each of their figures, once."""
    meanings = {item.term: item for part in parts for item in part.meanings}
    body = Html("").join(part.html for part in parts)
    return render(
        "page/section", id=id_, heading=heading, level=level, folded=folded, meanings=[*meanings.values()], body=body
    )
