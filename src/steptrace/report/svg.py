"""Matplotlib figures as inline SVG: text stays text, colours follow the page's theme, the same data gives the same bytes.

One unit of a figure is one CSS pixel at its natural width (`WIDTH`); the page scales it to its column.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

#: Natural width of a figure in CSS pixels: legible at 400 px, and two fit beside each other on a laptop.
WIDTH = 480.0

#: Colours by role (Okabe and Ito's palette, told apart by colour-blind readers too). page.css holds the same names
#: as custom properties, with other values for a dark screen.
COLOURS: dict[str, str] = {
    "ink": "#1a2433",
    "muted": "#5b6878",
    "rule": "#dbe1e8",
    "band": "#eceff3",
    "grey": "#97a1ad",
    "blue": "#0072b2",
    "sky": "#56b4e9",
    "green": "#009e73",
    "orange": "#e69f00",
    "vermillion": "#d55e00",
    "purple": "#cc79a7",
}
INK, MUTED, RULE, BAND, GREY = (COLOURS[name] for name in ("ink", "muted", "rule", "band", "grey"))

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "steptrace",
    "font.family": "DejaVu Sans",
    "font.size": 12,
    "text.color": INK,
    "axes.edgecolor": RULE,
    "axes.linewidth": 1.0,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 11.5,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "axes.unicode_minus": True,
    "path.simplify": True,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}

_NOT_INLINE = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>|<!--.*?-->", re.DOTALL)
_NAMESPACES = re.compile(r'\s+xmlns(?::\w+)?="[^"]*"')
_ID = re.compile(r'(\bid="|"#|url\(#)')


class InlineSvg(Markup):
    """An `<svg>` element that a notebook shows and a page embeds."""

    def _repr_html_(self) -> str:
        return str(self)


@contextmanager
def style() -> Iterator[None]:
    """The look of all figures, for the time of drawing and saving one."""
    with mpl.rc_context(_STYLE):
        yield


def canvas(height: float) -> Figure:
    """An empty figure of `WIDTH` x `height` CSS pixels."""
    figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
    FigureCanvasSVG(figure)  # type: ignore[no-untyped-call]
    return figure


def rows_axes(figure: Figure, rows_height: float, *, top: float = 4, margin: float = 4) -> Axes:
    """Axes whose y runs downwards in pixels over `rows_height`, with the x axis below and nothing else drawn."""
    height = figure.get_figheight() * 72
    axes = figure.add_axes(
        (margin / WIDTH, (height - top - rows_height) / height, 1 - 2 * margin / WIDTH, rows_height / height)
    )
    axes.set_ylim(rows_height, 0)
    axes.set_yticks([])
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="x", length=3, pad=3)
    return axes


def row_label(axes: Axes, y: float, left: str, right: str = "") -> None:
    """A row's name at the left edge, bold, and what is to be said of it at the right edge; `y` is the text's middle."""
    at = axes.get_yaxis_transform()
    axes.text(0, y, left, transform=at, va="center_baseline", ha="left", fontweight="bold", fontsize=12, parse_math=False)
    if right:
        axes.text(
            1, y, right, transform=at, va="center_baseline", ha="right", fontsize=11, color=MUTED, parse_math=False
        )


def inline(figure: Figure, name: str, alt: str) -> InlineSvg:
    """The figure as an SVG element. `name` keeps its ids apart from those of other figures of the page."""
    buffer = io.StringIO()
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=metadata)
    text = _NAMESPACES.sub("", _NOT_INLINE.sub("", buffer.getvalue())).replace("xlink:href", "href")
    text = _ID.sub(lambda match: f"{match.group(1)}{name}-", text)
    for role, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{role})")
    size = re.compile(r'<svg\s[^>]*?viewBox="([^"]+)"[^>]*>')
    head = f'<svg role="img" aria-label="{escape(alt)}" viewBox="\\1" class="chart">'
    return InlineSvg(size.sub(head, text.strip(), count=1))
