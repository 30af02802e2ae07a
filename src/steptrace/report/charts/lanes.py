"""The lanes of a step: what ran when, one row above the other, on one scale of time."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

from markupsafe import Markup

from steptrace import format as fmt
from steptrace.documents.overview import part_name
from steptrace.documents.timeline import Box, Lane, Timeline
from steptrace.report.charts.cells import time_axis
from steptrace.report.charts.palette import NEUTRAL, colour_of
from steptrace.report.charts.scale import Scale
from steptrace.report.charts.svg import PlotFrame, Wide, element, labels_of, percent, title
from steptrace.words.pictures import box_text, label_of

#: Height of a lane in pixels.
_LANE: Final = 20.0
#: The narrowest box, as a share of the width, so that it can be seen. Boxes of syncs are wider, since readers look for
#: them.
_LEAST: Final = 0.001
_LEAST_SYNC: Final = 0.003
#: A part that takes a smaller share of the step, in all lanes together, is left out of the key.
_LEAST_KEYED: Final = 0.005


def lanes(timeline: Timeline, caption: str, key: Markup = Markup()) -> Markup:  # noqa: B008
    """Each lane with its name, the axis of time below them, the key of colours that no name explains, and a caption.

    A box has a tooltip: its name, its length and its line. A wide one has its name inside. The page's script writes in
    the place of the caption which box is pointed at, for those who do not see the tooltip.
    """
    span = max(timeline.span_ns, 1)
    axis, unit = time_axis(Scale(0.0, span / fmt.NS_PER_MS, log=False))
    row = Markup('<div class="lane-row"><b>{}</b><div class="lane">{}</div></div>\n')
    rows = Markup("").join(row.format(lane.name, _lane(lane, span)) for lane in timeline.lanes)
    foot = Markup('<div class="lane-row"><span class="note">{}</span>{}</div>').format(unit, axis)
    below = Markup('<p class="note readout" role="status">{}</p>').format(caption)
    return Markup('<div class="lanes">{}{}{}{}</div>').format(rows, foot, key, below)


def parts_to_key(timeline: Timeline, keyed: Iterable[str]) -> list[str]:
    """The parts whose colours are seen in the lanes and are explained by nothing else.

    Nothing more needs to be said of a colour in the key of a picture above, of syncs, whose lane has their name, and of
    a part that has its name in one of its boxes.

    Args:
        timeline: the lanes.
        keyed: the parts in the key of a picture above.
    """
    explained = {colour_of(part) for part in keyed} | {NEUTRAL}
    lengths = Counter[str]()
    boxes = [box for lane in timeline.lanes if lane.kind != "syncs" for box in lane.boxes]
    span = max(timeline.span_ns, 1)
    for box in boxes:
        lengths[box.part] += box.dur_ns
        if box.name is None and not _is_idle(box) and labels_of(box.dur_ns / span, label_of(box)):
            explained.add(colour_of(box.part))
    by_colour: dict[str, str] = {}
    for part, ns in lengths.items():
        if ns >= _LEAST_KEYED * span and colour_of(part) not in explained:
            by_colour.setdefault(colour_of(part), part)
    return list(by_colour.values())


def _lane(lane: Lane, span: int) -> Markup:
    drawing = Wide(_LANE)
    least = _LEAST_SYNC if lane.kind == "syncs" else _LEAST
    for (colour, idle), boxes in groupby(sorted(lane.boxes, key=_look), key=_look):
        kind = ' class="idle"' if idle else ""
        drawing.add(f'<g fill="var(--{colour})"{kind}>{"".join(_rects([*boxes], span, least))}</g>')
    for box in lane.boxes:
        if not _is_idle(box):
            frame = PlotFrame(box.start_ns / span, box.dur_ns / span, 0, _LANE)
            drawing.label(frame, label_of(box), colour_of(box.part))
    kinds = ", ".join(dict.fromkeys(part_name(box.part) for box in lane.boxes))
    return drawing.svg(f"{lane.name}: {kinds}")


def _rects(boxes: Sequence[Box], span: int, least: float) -> Iterator[str]:
    """The boxes of one colour. Their common attributes are written once, since a step can have a thousand boxes."""
    for box in sorted(boxes, key=attrgetter("start_ns")):
        place = f'x="{percent(box.start_ns / span)}" width="{percent(max(box.dur_ns / span, least))}"'
        yield element("rect", place, title(box_text(box)))


def _look(box: Box) -> tuple[str, bool]:
    """The colour of a box, and whether it is a thin line."""
    return colour_of(box.part), _is_idle(box)


def _is_idle(box: Box) -> bool:
    """Whether nothing ran: the cause of idle time is a line at the foot of a lane, and all work is as high as it."""
    return box.part.startswith("idle_")
