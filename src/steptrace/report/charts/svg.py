"""Elements of SVG, and two kinds of drawings.

A `Drawing` is `WIDTH` pixels wide and scaled as a whole to its column by the page, letters included. A `Wide` picture
is as wide as its column while its letters keep their size: across, places are shares of the width; down, they are
pixels.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from markupsafe import Markup, escape

from steptrace import format as fmt

#: Natural width of a `Drawing` in CSS pixels: legible at 400 px, and two fit beside each other on a laptop.
WIDTH: Final = 440.0
#: Height of a row's label in a `Drawing`.
ONE_LINE: Final = 21.0
_BOLD_LETTER: Final = 8.2
#: Colours that are dark on a light page, where letters on them are pale, and colours that are nearly the page's own.
DARK: Final = frozenset({"blue", "indigo", "violet", "vermillion", "green", "wine"})
_PLAIN: Final = frozenset({"band", "rule", "surface"})

#: Letters of a tooltip, and of a picture's description: a name in a trace can have any length.
_LONGEST_TOOLTIP: Final = 120
_LONGEST_ALT: Final = 1_000
#: Letters of a text in a picture, which is cut off where its box ends.
_LONGEST_TEXT: Final = 80
#: The width of a `Wide` picture beside its names, on a laptop and on a phone, in pixels; of a letter in it; and of the
#: margins of a label.
_LAPTOP: Final = 1050.0
_PHONE: Final = 280.0
_LETTER: Final = 6.4
_MARGINS: Final = 8.0
#: A label that is cut to fewer letters than this is left out.
_LEAST_LETTERS: Final = 6

Point = tuple[float, float]


def image(kind: str, size: str, drawn: str, alt: str) -> Markup:
    """A whole picture from its class, the attributes of its size, its content, and its description."""
    return Markup(
        element("svg", f'class="{kind}" role="img" aria-label="{escape(fmt.clipped(alt, _LONGEST_ALT))}" {size}', drawn)
    )


def element(name: str, attributes: str, inside: str = "") -> str:
    """An element with its attributes, such as `x="4" width="10%"`, and what is inside it."""
    return f"<{name} {attributes}>{inside}</{name}>" if inside else f"<{name} {attributes}/>"


def text(place: str, words: str) -> str:
    """Words at a place, such as `x="4" y="12"`."""
    return element("text", place, str(escape(fmt.clipped(words, _LONGEST_TEXT))))


def title(words: str) -> str:
    """The tooltip of the element that it is put into."""
    return f"<title>{escape(fmt.clipped(words, _LONGEST_TOOLTIP))}</title>"


def colour(name: str) -> str:
    """A colour of page.css as an attribute's value."""
    return f"var(--{name})"


def short(value: float) -> str:
    """A coordinate to tenths of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def percent(share: float) -> str:
    """A share of the width, 0 to 1, as an attribute's value: to a ten-thousandth, a tenth of a pixel of a page."""
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + "%"


def labels_of(width: float, words: str) -> list[tuple[str, str]]:
    """The labels in a box of a `Wide` picture, each with its class; `width` is the box's share of the picture.

    A label that does not fit is cut, and then ends in "…". It is left out if too few letters would remain.
    Where all screens show the same, there is one label without a class. Otherwise "roomy" is for a laptop, and "phone"
    for narrower screens and for paper.
    """
    roomy, phone = (_cut(words, (width * pixels - _MARGINS) / _LETTER) for pixels in (_LAPTOP, _PHONE))
    if roomy == phone:
        return [("", roomy)] if roomy else []
    return [(kind, cut) for kind, cut in (("roomy", roomy), ("phone", phone)) if cut]


def _cut(words: str, letters: float) -> str:
    """As much of the words as has so many letters; nothing if that is too little."""
    if len(words) <= letters:
        return words
    return "" if letters < _LEAST_LETTERS else f"{words[: int(letters) - 1].rstrip()}…"


class Drawing:
    """A chart to draw on; x and y in pixels, y downwards."""

    def __init__(self, height: float) -> None:
        self.height = height
        self._parts: list[str] = []

    def rect(self, corner: Point, size: Point, fill: str) -> None:
        """A box with its upper left corner at a place."""
        x, y = corner
        width, height = size
        place = f'x="{short(x)}" y="{short(y)}" width="{short(width)}" height="{short(height)}"'
        self._add("rect", f'{place} fill="{colour(fill)}"')

    def line(self, start: Point, end: Point, stroke: str = "rule", *, dash: str = "") -> None:
        """A straight line; `dash` as SVG's stroke-dasharray has it."""
        ends = f'x1="{short(start[0])}" y1="{short(start[1])}" x2="{short(end[0])}" y2="{short(end[1])}"'
        self._add("line", f'{ends} stroke="{colour(stroke)}"' + (f' stroke-dasharray="{dash}"' if dash else ""))

    def dot(self, centre: Point, fill: str) -> None:
        """A filled circle."""
        self._add("circle", f'cx="{short(centre[0])}" cy="{short(centre[1])}" r="3.5" fill="{colour(fill)}"')

    def area(self, points: Sequence[Point], floor: float, fill: str, *, opacity: float = 1.0) -> None:
        """The area between `floor` and steps that each hold their value until the next point."""
        places = [f"M{short(points[0][0])} {short(floor)}V{short(points[0][1])}"]
        places += [f"H{short(x)}V{short(y)}" for x, y in points[1:]]
        pale = "" if opacity == 1.0 else f' fill-opacity="{opacity:g}"'
        self._add("path", f'd="{"".join(places)}V{short(floor)}z" fill="{colour(fill)}"{pale}')

    def curve(self, points: Sequence[Point], stroke: str, *, dash: str = "") -> None:
        """A line through points; `dash` as SVG's stroke-dasharray has it."""
        places = " ".join(f"{short(x)},{short(y)}" for x, y in points)
        look = f' stroke-dasharray="{dash}"' if dash else ""
        self._add("polyline", f'points="{places}" fill="none" stroke="{colour(stroke)}" stroke-width="1.1"{look}')

    def text(self, place: Point, words: str, kind: str = "note", *, anchor: str = "start") -> None:
        """Words on a line whose middle is at a height; `kind` is "note", small and pale, or "name", bold."""
        look = f' class="{kind}"' if kind != "note" else ""
        look += f' text-anchor="{anchor}"' if anchor != "start" else ""
        self._parts.append(text(f'x="{short(place[0])}" y="{short(place[1] + 4)}"{look}', words))

    def row_label(self, top: float, name: str, note: str) -> None:
        """A row's name, and at the right end of its line the note on it."""
        self.text((0, top + ONE_LINE / 2), fmt.clipped(name, int(WIDTH / _BOLD_LETTER) - 1), "name")
        if note:
            self.text((WIDTH, top + ONE_LINE / 2), note, anchor="end")

    def svg(self, alt: str) -> Markup:
        """The drawing, with what it shows in words."""
        return image("chart drawn", f'viewBox="0 0 {short(WIDTH)} {short(self.height)}"', "".join(self._parts), alt)

    def _add(self, name: str, attributes: str) -> None:
        self._parts.append(element(name, attributes))


class PlotFrame(NamedTuple):
    """Where a box of a `Wide` picture lies: across in shares of the picture's width, down in pixels."""

    left: float
    width: float
    top: float
    height: float


class Wide:
    """A chart as wide as its column: across in shares of the width (0 to 1), down in pixels."""

    def __init__(self, height: float) -> None:
        self.height = height
        self._parts: list[str] = []

    def box(self, frame: PlotFrame, fill: str, *, words: str = "", label: str = "", opacity: float = 1.0) -> None:
        """A box.

        Args:
            frame: where it lies.
            fill: name of its colour.
            words: its tooltip.
            label: written inside, as much of it as fits.
            opacity: of its colour, 0 to 1.
        """
        pale = "" if opacity == 1.0 else f' fill-opacity="{opacity:.2g}"'
        place = f'x="{percent(frame.left)}" width="{percent(frame.width)}"'
        place += f' y="{short(frame.top)}" height="{short(frame.height)}"'
        self._parts.append(element("rect", f'{place} fill="{colour(fill)}"{pale}', title(words) if words else ""))
        self.label(frame, label, fill)

    def label(self, frame: PlotFrame, words: str, ground: str) -> None:
        """Words within a frame, as many as fit; nothing where too little of them could be read.

        Args:
            frame: where they stand.
            words: what they are.
            ground: the colour that they stand on.
        """
        for kind, cut in labels_of(frame.width, words):
            place = f'class="{kind}" ' if kind else ""
            place += f'x="{percent(frame.left)}" width="{percent(frame.width)}"'
            place += f' y="{short(frame.top)}" height="{short(frame.height)}"'
            self._parts.append(element("svg", place, _label(frame, cut, ground)))

    def add(self, elements: str) -> None:
        """Elements that are written already."""
        self._parts.append(elements)

    def line(self, start: Point, end: Point, stroke: str = "rule", *, dash: str = "") -> None:
        """A straight line between two points, each a share of the width and pixels down."""
        ends = f'x1="{percent(start[0])}" y1="{short(start[1])}" x2="{percent(end[0])}" y2="{short(end[1])}"'
        look = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(element("line", f'{ends} stroke="{colour(stroke)}"{look}'))

    def dot(self, centre: Point, radius: float, fill: str, *, words: str = "") -> None:
        """A filled circle with a radius in pixels, and its tooltip."""
        place = f'cx="{percent(centre[0])}" cy="{short(centre[1])}" r="{short(radius)}"'
        self._parts.append(element("circle", f'{place} fill="{colour(fill)}"', title(words) if words else ""))

    def text(self, place: Point, words: str, *, anchor: str = "start", kind: str = "") -> None:
        """Words on a line whose middle is at a height; `kind` is a class, such as "name" (bold)."""
        look = f' class="{kind}"' if kind else ""
        look += f' text-anchor="{anchor}"' if anchor != "start" else ""
        self._parts.append(text(f'x="{percent(place[0])}" y="{short(place[1] + 4)}"{look}', words))

    def svg(self, alt: str, kind: str = "") -> Markup:
        """The picture, with what it shows in words; `kind` is a class beside `wide`."""
        size = f'width="100%" height="{short(self.height)}"'
        return image(f"wide {kind}".rstrip(), size, "".join(self._parts), alt)


def _label(frame: PlotFrame, words: str, ground: str) -> str:
    if ground in DARK:
        kind = "on-dark"
    elif ground in _PLAIN:
        kind = "on-plain"
    else:
        kind = "on-light"
    return text(f'class="{kind}" x="4" y="{short(frame.height / 2 + 4)}"', words)
