"""SVG as text, and charts of it: bars, lines and words at places in CSS pixels, in colours of the page's theme.

A `Drawing` is `WIDTH` pixels wide and scaled as a whole to its column by the page. What is stretched to the width of a
page or a column while its letters keep their size (the lanes of a step, cells of tables) has its elements placed in
percent. Colours are names of page.css's custom properties.
"""

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

from steptrace import format as fmt


def image(kind: str, size: str, drawn: str, alt: str) -> Markup:
    """A whole picture: its class, the attributes of its size, what it holds, and what it shows in words."""
    return Markup(element("svg", f'class="{kind}" role="img" aria-label="{escape(alt)}" {size}', drawn))


def element(name: str, attributes: str, inside: str = "") -> str:
    """An element with its attributes, such as `x="4" width="10%"`, and what is inside it."""
    return f"<{name} {attributes}>{inside}</{name}>" if inside else f"<{name} {attributes}/>"


def text(place: str, words: str) -> str:
    """Words at a place, such as `x="4" y="12"`."""
    return element("text", place, str(escape(words)))


def title(words: str) -> str:
    """The tooltip of the element that it is put into."""
    return f"<title>{escape(words)}</title>"


#: Natural width of a chart in CSS pixels: legible at 400 px, and two fit beside each other on a laptop.
WIDTH = 440.0
#: Height of a row's label.
ONE_LINE = 21.0
_BOLD_LETTER = 8.2

Point = tuple[float, float]


class Drawing:
    """A chart to draw on; x and y in pixels, y downwards."""

    def __init__(self, height: float) -> None:
        self.height = height
        self._parts: list[str] = []

    def rect(self, corner: Point, size: Point, colour: str) -> None:
        """A box with its upper left corner at a place."""
        (x, y), (width, height) = corner, size
        place = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
        self._add("rect", f'{place} fill="{_colour(colour)}"')

    def line(self, start: Point, end: Point, colour: str = "rule", *, dash: str = "") -> None:
        """A straight line; `dash` as SVG's stroke-dasharray has it."""
        ends = f'x1="{_n(start[0])}" y1="{_n(start[1])}" x2="{_n(end[0])}" y2="{_n(end[1])}"'
        self._add("line", f'{ends} stroke="{_colour(colour)}"' + (f' stroke-dasharray="{dash}"' if dash else ""))

    def dot(self, centre: Point, colour: str) -> None:
        """A filled circle."""
        self._add("circle", f'cx="{_n(centre[0])}" cy="{_n(centre[1])}" r="3.5" fill="{_colour(colour)}"')

    def area(self, points: Sequence[Point], floor: float, colour: str, *, opacity: float = 1.0) -> None:
        """The area between `floor` and steps that each hold their value until the next point."""
        places = [f"M{_n(points[0][0])} {_n(floor)}V{_n(points[0][1])}"]
        places += [f"H{_n(x)}V{_n(y)}" for x, y in points[1:]]
        pale = "" if opacity == 1.0 else f' fill-opacity="{opacity:g}"'
        self._add("path", f'd="{"".join(places)}V{_n(floor)}z" fill="{_colour(colour)}"{pale}')

    def curve(self, points: Sequence[Point], colour: str) -> None:
        """A line through points."""
        places = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        self._add("polyline", f'points="{places}" fill="none" stroke="{_colour(colour)}" stroke-width="1.1"')

    def text(self, place: Point, words: str, kind: str = "note", *, anchor: str = "start") -> None:
        """Words on a line whose middle is at a height; `kind` is "note", small and pale, or "name", bold."""
        look = f' class="{kind}"' if kind != "note" else ""
        look += f' text-anchor="{anchor}"' if anchor != "start" else ""
        self._parts.append(text(f'x="{_n(place[0])}" y="{_n(place[1] + 4)}"{look}', words))

    def row_label(self, top: float, name: str, note: str) -> None:
        """A row's name, and at the right end of its line the note on it."""
        self.text((0, top + ONE_LINE / 2), fmt.clipped(name, int(WIDTH / _BOLD_LETTER) - 1), "name")
        if note:
            self.text((WIDTH, top + ONE_LINE / 2), note, anchor="end")

    def svg(self, alt: str) -> Markup:
        """The drawing, with what it shows in words."""
        return image("chart drawn", f'viewBox="0 0 {_n(WIDTH)} {_n(self.height)}"', "".join(self._parts), alt)

    def _add(self, name: str, attributes: str) -> None:
        self._parts.append(element(name, attributes))


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round values from `low` to `high`, at most so many and one more: multiples of 1, 2 or 5 times a power of ten."""
    least = (high - low) / most
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _colour(name: str) -> str:
    return f"var(--{name})"


def _n(value: float) -> str:
    """A coordinate to tenths of a pixel."""
    return f"{value:.1f}".removesuffix(".0")
