"""An icicle: a tree from top to bottom, each box as wide as its share of the whole, children below their parent."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from markupsafe import Markup

from steptrace.report.charts.svg import PlotFrame, Wide

#: Height of a level, and of its boxes, in pixels.
_LEVEL: Final = 22.0
_BOX: Final = 21.0
#: Height of the line below a box that shows its parts.
_PARTS: Final = 4.0
#: A box with a smaller share of the width is left out: it would not be seen.
_LEAST: Final = 0.002


@dataclass(frozen=True)
class Branch:
    """One box.

    Attributes:
        label: written inside.
        size: its length; at least the sum of its children's.
        words: its tooltip.
        fill: its colour.
        parts: what its size is made of, each with its colour: a line below its label.
        children: the boxes below it, from left to right.
    """

    label: str
    size: float
    words: str
    fill: str = "band"
    parts: Sequence[tuple[float, str]] = ()
    children: "Sequence[Branch]" = field(default=(), repr=False)


def icicle(roots: Sequence[Branch], alt: str) -> Markup:
    """The trees side by side, together as wide as the picture; `alt` says in words what it shows.

    Raises:
        ValueError: no tree has a size.
    """
    whole = sum(root.size for root in roots)
    if whole <= 0:
        raise ValueError("an icicle needs a tree with a size")
    drawing = Wide(0.0)
    # A stack, not recursion: a tree of modules can be deeper than Python's own limit.
    stack = [(tuple(roots), 0.0, 0)]
    while stack:
        branches, left, level = stack.pop()
        for branch in branches:
            width = branch.size / whole
            if width >= _LEAST:
                _draw(drawing, branch, left, width, _LEVEL * level)
                drawing.height = max(drawing.height, _LEVEL * (level + 1))
                stack.append((tuple(branch.children), left, level + 1))
            left += width
    return drawing.svg(alt, "icicle")


def _draw(drawing: Wide, branch: Branch, left: float, width: float, top: float) -> None:
    drawing.box(PlotFrame(left, width, top, _BOX), branch.fill, words=branch.words, label=branch.label)
    for size, colour in branch.parts:
        share = width * size / branch.size
        if share > 0:
            drawing.box(PlotFrame(left, share, top + _BOX - _PARTS, _PARTS), colour)
        left += share
