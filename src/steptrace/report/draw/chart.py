"""Matplotlib figures as inline SVG: text stays text, colours follow the page's theme, same data give the same bytes.

One unit of a figure is one CSS pixel at its natural width (`WIDTH`); the page scales it to its column.
"""

import io
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import matplotlib as mpl
from markupsafe import escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from steptrace.report.draw.svg import InlineSvg

#: Natural width of a figure in CSS pixels: legible at 400 px, and two fit beside each other on a laptop.
WIDTH = 440.0

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

#: Height of a one-line label, and the width of a letter of a name and of a note, in pixels.
ONE_LINE = 21.0
LEGEND_LINE = 19.0
_BOLD_LETTER, _LETTER = 8.2, 6.6

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
_TIP = re.compile(r'<g id="tip ([^"]*)">')
_ID = re.compile(r'(\bid="|"#|url\(#)')


_part = ContextVar("part", default="")


@contextmanager
def part_of_page(name: str) -> Iterator[None]:
    """Keeps the ids of figures drawn in it apart from those of equal figures in other parts of a page."""
    token = _part.set(name)
    try:
        yield
    finally:
        _part.reset(token)


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


def plain_axes(figure: Figure) -> Axes:
    """Axes over the whole figure without lines and ticks; x and y are pixels, y downwards."""
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(figure.get_figheight() * 72, 0)
    return axes


def step_line(axes: Axes, points: Sequence[tuple[float, float]], floor: float, **look: Any) -> None:
    """A filled line of steps, each value held until the next, over `floor`."""
    x, y = zip(*points, strict=True)
    axes.fill_between(x, y, floor, step="post", linewidth=0, **look)


def label_height(labels: Iterable[tuple[str, str]]) -> float:
    """Height of the rows' labels: one line, or two if a name and its note do not fit beside each other."""
    fits = all(len(shorten(left)) * _BOLD_LETTER + len(right) * _LETTER + 12 < WIDTH for left, right in labels)
    return ONE_LINE if fits else ONE_LINE + 15


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


def tip(words: str) -> str:
    """The `gid` of an artist that shows these words when it is pointed at."""
    return f"tip {words}"


def shorten(name: str) -> str:
    """A name that fits a figure's width: the middle of a longer one is left out."""
    most = int(WIDTH / _BOLD_LETTER) - 1
    return name if len(name) <= most else f"{name[: most // 2]}…{name[-(most // 2 - 1) :]}"


Legend = Sequence[Sequence[tuple[float, str, Any]]]


def legend_lines(entries: Iterable[tuple[str, Any]]) -> Legend:
    """A legend's words and colours in lines that fit the width: of each its left edge, word and colour."""
    lines: list[list[tuple[float, str, Any]]] = [[]]
    x = 4.0
    for word, colour in entries:
        width = 15 + 6.8 * len(word) + 12
        if x + width > WIDTH and lines[-1]:
            lines.append([])
            x = 4.0
        lines[-1].append((x, word, colour))
        x += width
    return lines


def legend_height(lines: Legend) -> float:
    """The height of a legend above a chart, in pixels; 6 without one."""
    return 6 + LEGEND_LINE * len([line for line in lines if line])


def draw_legend(figure: Figure, lines: Legend) -> None:
    """The legend at the top of a figure."""
    for line, entries in enumerate(lines):
        y = 1 - (9 + LEGEND_LINE * line) / (figure.get_figheight() * 72)
        for x, word, colour in entries:
            figure.text(x / WIDTH, y, "■", color=colour, va="center_baseline", fontsize=13)
            figure.text((x + 15) / WIDTH, y, word, va="center_baseline", fontsize=11.5)


def inline(figure: Figure, alt: str) -> InlineSvg:
    """The figure as an SVG element, its ids apart from those of other figures of the page."""
    buffer = io.StringIO()
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=metadata)
    text = _NAMESPACES.sub("", _NOT_INLINE.sub("", buffer.getvalue())).replace("xlink:href", "href")
    text = _TIP.sub(r"<g><title>\1</title>", text)
    name = f"f{zlib.crc32((_part.get() + text + alt).encode()):x}"
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
