"""Matplotlib figures as inline SVG: text stays text, colours follow the page's theme, same data give the same bytes.

One unit of a figure is one CSS pixel at its natural width (`WIDTH`); the page scales it to its column.
"""

import io
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import matplotlib as mpl
from markupsafe import escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from steptrace.report.draw.drawing import ONE_LINE, WIDTH, shorten
from steptrace.report.draw.svg import InlineSvg

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
    "surface": "#fefefe",
}
INK, MUTED, RULE, BAND, GREY = (COLOURS[name] for name in ("ink", "muted", "rule", "band", "grey"))

_STYLE: dict[str, Any] = {
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
_TAG = re.compile(r"<[^>]*>")
_BETWEEN_TAGS = re.compile(r">\s+<")
_REFERENCE = re.compile(r'(?:href="#|url\(#)([^")]+)')
_ID_OF = re.compile(r' id="([^"]+)"')
_BARE_GROUP = re.compile(
    r"<g>(<(?:use|path|rect|text|line|image)\b[^<]*(?:</(?:use|path|rect|text|line|image)>|(?<=/>)))</g>"
)
_INVISIBLE = re.compile(r'<path d="[^"]*" style="fill: none"\s*/>')
_PATH = re.compile(r' d="([^"]*)"')
_AFTER_LETTER = re.compile(r" ?([A-Za-z]) ?")
_STYLE_OF = re.compile(r' style="([^"]+)"')
_NO_TURN = re.compile(r' transform="rotate\(-?0 [^"]*\)"')
_FRACTION = re.compile(r"-?\b\d+\.\d{3,}\b")
_ROOT = re.compile(r'<svg\s[^>]*?viewBox="([^"]+)"[^>]*>')
_ID = re.compile(r'(\bid="|"#|url\(#)')


@contextmanager
def style() -> Iterator[None]:
    """The look of all figures, for the time of drawing and saving one."""
    with mpl.rc_context(cast("Any", _STYLE)):
        yield


def canvas(height: float) -> Figure:
    """An empty figure of `WIDTH` x `height` CSS pixels."""
    figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
    FigureCanvasSVG(figure)
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
    axes.set_axisbelow(True)
    return axes


def row_label(axes: Axes, top: float, height: float, label: tuple[str, str]) -> None:
    """A row's name, bold, and the note on it: at the right edge of its line, or below it where `height` has room."""
    name, note = label
    below = height > ONE_LINE
    write(axes, (0, top + ONE_LINE / 2), shorten(name), fontweight="bold", fontsize=12)
    where = (0, top + ONE_LINE / 2 + 15) if below else (1, top + ONE_LINE / 2)
    small(axes, where, note, ha="left" if below else "right")


def small(axes: Axes, where: tuple[float, float], text: str, **style: Any) -> None:
    """A note: text as `write` has it, small and pale."""
    write(axes, where, text, fontsize=11, color=MUTED, **style)


def write(axes: Axes, where: tuple[float, float], text: str, **style: Any) -> None:
    """Text at a share of the width and a height in pixels. Names hold underscores and dollars: no mathematics."""
    transform = axes.get_yaxis_transform()
    # The page's own colour behind the letters keeps grid lines out of them.
    style = {"bbox": {"facecolor": COLOURS["surface"], "edgecolor": "none", "pad": 1.0}} | style
    axes.text(*where, text, transform=transform, va="center_baseline", parse_math=False, **style)


def inline(figure: Figure, alt: str) -> InlineSvg:
    """The figure as an SVG element, its ids apart from those of other figures of the page."""
    buffer = io.StringIO()
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=metadata)
    text = _NAMESPACES.sub("", _NOT_INLINE.sub("", buffer.getvalue())).replace("xlink:href", "href")
    name = f"f{zlib.crc32((text + alt).encode()):x}"
    text = _ID.sub(lambda match: f"{match.group(1)}{name}-", text)
    for role, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{role})")
    text = _slim(text, name)
    found = _ROOT.search(text)
    assert found is not None  # Matplotlib always writes one
    head = f'<svg role="img" aria-label="{escape(alt)}" viewBox="{found.group(1)}" class="chart">'
    return InlineSvg(head + text[found.end() :].strip())


def _slim(text: str, name: str) -> str:
    """The same picture in a third of the letters that Matplotlib writes.

    Coordinates to hundredths of a pixel, no turn by nothing, nothing invisible, no name that nothing refers to, no
    group round one element that says nothing itself, and styles that come back as classes of the figure `name`.
    """
    used = set(_REFERENCE.findall(text))
    text = _ID_OF.sub(lambda found: found[0] if found[1] in used else "", text)
    text = _TAG.sub(lambda tag: _FRACTION.sub(_rounded, _NO_TURN.sub("", tag[0])), text)
    text = _PATH.sub(_short_path, text)
    text = _BETWEEN_TAGS.sub("><", _INVISIBLE.sub("", text))
    count = 1
    while count:  # groups stand in groups
        text, count = _BARE_GROUP.subn(r"\1", text)
    styles = Counter(_STYLE_OF.findall(text))
    classes = {style: f"{name}-{number}" for number, style in enumerate(s for s, n in styles.items() if n > 1)}
    text = _STYLE_OF.sub(lambda s: f' class="{classes[s[1]]}"' if s[1] in classes else s[0], text)
    # Of two classes, as an own style would, they outweigh what the page says of all charts.
    rules = "".join(f".chart .{short}{{{style}}}" for style, short in classes.items())
    return text.replace("</style>", f"{rules}</style>", 1)


def _short_path(path: re.Match[str]) -> str:
    return f' d="{_AFTER_LETTER.sub(lambda letter: letter[1], " ".join(path[1].split()))}"'


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")
