"""What sections of a page are made of, beside tables and facts: sentences, pictures, bars, folded parts, badges."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from steptrace.documents.comparison import Comparison
from steptrace.documents.run import is_simulated
from steptrace.findings.estimated import estimated_gpus, leads
from steptrace.format import enumeration
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


@dataclass(frozen=True)
class DeviceNote:
    """What to know of the device before anything else, in a few words."""

    words: str
    tone: str


SIMULATED: Final = DeviceNote("simulated GPU: times mean nothing", "bad")
NO_GPU: Final = DeviceNote("no GPU: CPU timings", "warning")


def device_of_study(study: Comparison) -> DeviceNote | None:
    """The note on whose figures lead; None for a GPU's, and where no run recorded its machine."""
    if study.environment is not None and is_simulated(study.environment.gpu):
        return SIMULATED
    if leads(study):
        return DeviceNote(f"no GPU: estimated for {enumeration(estimated_gpus(study))}", "warning")
    return NO_GPU if study.environment is not None and study.environment.gpu is None else None


def device_of_traces(gpus: Sequence[str | None], *, has_gpu: bool) -> DeviceNote | None:
    """The note on traces with these names of GPUs; `has_gpu`: whether any of them holds GPU work."""
    if any(map(is_simulated, gpus)):
        return SIMULATED
    return None if has_gpu else NO_GPU
