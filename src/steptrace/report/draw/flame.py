"""Flame graphs as one SVG element; its tooltips have the names, times and shares of all boxes.

Boxes hang from the top, a box below the one that called it, the widest first. A box is an `<svg>` within the `<svg>`,
placed in percent: the browser stretches the graph to any width and cuts off what does not fit of a name.
"""

import re
from collections import defaultdict
from collections.abc import Sequence

from markupsafe import escape

from steptrace import format as fmt
from steptrace.documents.program import Flame, FlameBox
from steptrace.report.draw.svg import InlineSvg, element, graph, legend, text, title

#: Height of a box and of the gap below it, in pixels.
BOX, GAP = 18, 1
#: How many letters fit into the whole width of a page; a name of which fewer than these would be seen is not written.
_LETTERS, _FEWEST = 150, 12

_MODULE_LEVEL = re.compile(r"\(\d+\): <module>\Z")

#: What the colours of the boxes mean, in the order of the legend.
KINDS = {
    "thread": "thread",
    "frame": "Python",
    "label": "label",
    "op": "operator",
    "backward": "backward of the operator above",
    "call": "runtime call",
    "compute": "compute",
    "comm": "communication",
    "memory": "memory",
}


def flame(tree: Flame | None, what: str) -> InlineSvg | None:
    """The flame graph; None if there is nothing to show.

    Args:
        tree: `device_flame` or `host_flame` of a trace.
        what: what the widths are, for the root's name.
    """
    if tree is None or not tree.total_ns:
        return None
    total, boxes = tree.total_ns, tree.boxes
    left, depth = _layout(boxes)
    drawn = "".join(_box(box, left[row] / total, depth[row], total, what) for row, box in enumerate(boxes))
    alt = f"Flame graph of {what}, {fmt.duration_ns(total)} in all. Widest: " + _widest(boxes, total)
    height = (max(depth) + 1) * (BOX + GAP)
    return graph("flame", drawn, height, alt, legend(KINDS, (box.kind for box in boxes)))


def _layout(boxes: Sequence[FlameBox]) -> tuple[list[int], list[int]]:
    """Left edge, in ns, and depth of each box; children stand side by side, the widest first."""
    children: defaultdict[int | None, list[int]] = defaultdict(list)
    for row, box in enumerate(boxes):
        children[box.parent].append(row)
    left, depth = [0] * len(boxes), [0] * len(boxes)
    for row in range(len(boxes)):  # callers come first
        edge = left[row]
        for child in sorted(children[row], key=lambda r: (-boxes[r].ns, boxes[r].name)):
            left[child], depth[child] = edge, depth[row] + 1
            edge += boxes[child].ns
    return left, depth


def _box(box: FlameBox, left: float, depth: int, total: int, what: str) -> str:
    share = box.ns / total
    name = f"all {what}" if box.kind == "root" else _named(box)
    tooltip = f"{name}\n{fmt.duration_ns(box.ns)}, {fmt.share(share)} of {what}, {fmt.plural(box.calls, 'call')}"
    letters = int(share * _LETTERS) - 1
    named = text('x="4" y="13"', fmt.clipped(name, letters)) if letters >= min(len(name), _FEWEST) else ""
    place = f'x="{100 * left:.7g}%" y="{depth * (BOX + GAP)}" width="{100 * share:.7g}%" height="{BOX}"'
    drawn = title(tooltip) + element("rect", 'width="100%" height="100%"') + named
    return element("svg", f'class="{escape(box.kind)}" {place}', drawn)


def _named(box: FlameBox) -> str:
    """A box's name; a trace has no line of code outside of functions but the file's first."""
    return _MODULE_LEVEL.sub(", module level", box.name) if box.kind == "frame" else box.name


def _widest(boxes: Sequence[FlameBox], total: int) -> str:
    """The widest operators and lines in words, for those who do not see the graph."""
    named = sorted((box for box in boxes if box.kind in ("frame", "op", "label")), key=lambda box: -box.ns)
    return ", ".join(f"{_named(box)} {fmt.share(box.ns / total)}" for box in named[:5]) + "."
