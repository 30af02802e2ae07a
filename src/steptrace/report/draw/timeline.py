"""The picture of one step: a lane of host, syncs, GPU and each stream below the other, over an axis of time."""

from itertools import groupby

from markupsafe import Markup

from steptrace.documents.overview import part_name
from steptrace.documents.timeline import Lane, Timeline
from steptrace.format import NS_PER_MS
from steptrace.report.draw.cells import Scale, time_axis
from steptrace.report.draw.names import colour_of
from steptrace.report.draw.svg import element, image

#: Units of a lane's height. What runs for less than this of a piece is drawn as high, so that it is seen.
_HEIGHT, _LEAST = 100, 12


def timeline_figure(timeline: Timeline) -> Markup:
    """Each lane with the keys of its parts, and the axis of time."""
    axis, unit = time_axis(Scale(0.0, max(timeline.span_ns, 1) / NS_PER_MS, log=False))
    lanes = Markup("").join(map(_lane, timeline.lanes))
    return Markup('{}{}<p class="note">Time in {}; the height is the share of the time.</p>').format(lanes, axis, unit)


def _lane(lane: Lane) -> Markup:
    names, pieces = {part: part_name(part) for part in lane.parts}, max(map(len, lane.parts.values()))
    below, drawn = [0] * pieces, ""
    for part, heights in lane.parts.items():
        seen = [max(height, _LEAST) if height else 0 for height in heights]
        tops = [min(low + height, _HEIGHT) for low, height in zip(below, seen, strict=True)]
        drawn += element("path", f'fill="var(--{colour_of(part)})" d="{_outline(below, tops)}"')
        below = tops
    frame = f'width="100%" height="20" viewBox="0 0 {pieces} {_HEIGHT}" preserveAspectRatio="none"'
    words = f"{lane.name}: {', '.join(names.values())}"
    key = Markup('<span class="key {}">{}</span>')
    keys = Markup("").join(key.format(colour_of(part), name) for part, name in names.items())
    return Markup('<div class="goes"><b>{}</b> {}{}</div>').format(lane.name, keys, image("lane", frame, drawn, words))


def _outline(low: list[int], high: list[int]) -> str:
    """The area between two heights in each piece; pieces of the same heights that follow each other are one box."""
    boxes, x = [], 0
    for (bottom, top), alike in groupby(zip(low, high, strict=True)):
        width = len(list(alike))
        if top > bottom:
            boxes.append(f"M{x} {_HEIGHT - top}h{width}v{top - bottom}h-{width}z")
        x += width
    return "".join(boxes)
