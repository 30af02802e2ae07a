"""The picture of one step as one SVG element: threads, syncs, idle gaps and streams over an axis of time.

Heights are pixels, and widths shares of the page's, so that letters keep their size on every screen. Boxes that can be
pointed at carry their name and length as a tooltip, the widest ones written inside, too.
"""

from collections import defaultdict
from dataclasses import dataclass

from markupsafe import escape

from steptrace import format as fmt
from steptrace.documents.overview import IDLE_CAUSES
from steptrace.documents.timeline import Lane, Timeline
from steptrace.report.draw.drawing import ticks
from steptrace.report.draw.svg import InlineSvg, element, graph, legend, text, title

#: Units of the width: one is a tenth of a pixel on a wide page.
_UNITS = 10_000
_BOX, _PITCH, _LABEL, _GAP, _AXIS = 16, 17, 16, 6, 18
#: Widths in units: what is drawn at least, and what can be pointed at.
_NARROWEST, _POINTED = 7, 30
#: A name is written where it, or a good part of it, fits: units that a letter takes, and that do for any name.
_LETTER, _NAMED = 56, 580
_MOST_LETTERS = 48

#: What the colours mean, in the order of the legend.
KINDS = {
    "label": "label",
    "loader": "wait for the loader",
    "op": "operator",
    "sync": "sync",
    "compute": "compute",
    "comm": "communication",
    "memory": "copy or set",
    **{f"idle_{cause}": f"idle {why}" for cause, why in IDLE_CAUSES.items()},
}


@dataclass(frozen=True)
class _Box:
    """A box of the picture: its place in units and levels, and what summary.json says of it."""

    x: int
    width: int
    level: int
    kind: str
    name: str
    start_ns: int
    dur_ns: int
    events: int
    time_ns: int

    @property
    def height(self) -> int:
        """Several events as high as the share of the box that they fill, but high enough to be seen."""
        if self.events == 1 or self.dur_ns == 0:
            return _BOX
        return min(_BOX, max(2, round(_BOX * self.time_ns / self.dur_ns)))


def timeline_figure(timeline: Timeline | None) -> InlineSvg | None:
    """The picture of a step; None if there is nothing to show."""
    if timeline is None or not timeline.lanes:
        return None
    scale = max(timeline.span_ns, 1)
    lanes = [(lane, _boxes(timeline, lane, scale)) for lane in timeline.lanes]
    parts, top = [], 0
    for lane, boxes in lanes:
        parts.append(text(f'class="lane" x="0" y="{top + 11}"', lane.name))
        top += _LABEL
        height = (max(box.level for box in boxes) + 1) * _PITCH
        parts += [_lane(boxes, top, height), *_names(lane.kind, boxes, top)]
        top += height + _GAP
    behind = _grid(scale, top) + _behind(timeline, lanes, scale, top)
    keys = legend(KINDS, (box.kind for _, boxes in lanes for box in boxes))
    return graph("timeline", behind + "".join(parts), top + _AXIS, _words(timeline, lanes), keys)


def _boxes(timeline: Timeline, lane: Lane, scale: int) -> list[_Box]:
    columns = (lane.start_ns, lane.dur_ns, lane.level, lane.events, lane.time_ns, lane.what)
    return [
        _Box(
            x=round(start * _UNITS / scale),
            width=max(round((start + dur) * _UNITS / scale) - round(start * _UNITS / scale), _NARROWEST),
            level=level,
            kind=timeline.kinds[what],
            name=timeline.names[what],
            start_ns=start,
            dur_ns=dur,
            events=events,
            time_ns=time,
        )
        for start, dur, level, events, time, what in zip(*columns, strict=True)
    ]


def _lane(boxes: list[_Box], top: int, height: int) -> str:
    """The boxes of a lane, stretched to the width of the page; colours in the order of their boxes' length."""
    kinds: defaultdict[str, list[_Box]] = defaultdict(list)
    for box in sorted(boxes, key=lambda box: (-box.width, box.x, box.level)):
        kinds[box.kind].append(box)
    groups = (element("g", f'class="{escape(kind)}"', _drawn(drawn)) for kind, drawn in kinds.items())
    frame = f'y="{top}" width="100%" height="{height}" viewBox="0 0 {_UNITS} {height}" preserveAspectRatio="none"'
    return element("svg", frame, "".join(groups))


def _drawn(boxes: list[_Box]) -> str:
    """Those too narrow to be pointed at are one path."""
    narrow = "".join(f"M{b.x} {_top(b)}h{b.width}v{b.height}h-{b.width}z" for b in boxes if b.width < _POINTED)
    rects = (
        element("rect", f'x="{b.x}" y="{_top(b)}" width="{b.width}" height="{b.height}"', title(_tooltip(b)))
        for b in boxes
        if b.width >= _POINTED
    )
    return (element("path", f'd="{narrow}"') if narrow else "") + "".join(rects)


def _top(box: _Box) -> int:
    return box.level * _PITCH + _BOX - box.height


def _names(lane_kind: str, boxes: list[_Box], top: int) -> list[str]:
    """The names of the boxes that have room for one; a sync's may run on to the next."""
    names = []
    ends = [*(box.x for box in boxes[1:]), _UNITS]
    for box, next_x in zip(boxes, ends, strict=True):
        room = max(box.width, next_x - box.x) if lane_kind == "syncs" else box.width
        name = fmt.clipped(_name(box), _MOST_LETTERS)
        if room < min(_NAMED, (len(name) + 1) * _LETTER) or box.height < _BOX - 3:
            continue
        place = f'x="{box.x / 100:g}%" y="{top + box.level * _PITCH}" width="{room / 100:g}%" height="{_BOX}"'
        names.append(element("svg", place, text('x="4" y="12"', name)))
    return names


def _name(box: _Box) -> str:
    if box.kind == "loader":
        return KINDS["loader"]
    if box.kind.startswith("idle_"):
        return KINDS[box.kind].removeprefix("idle ")
    return box.name.strip("# ") or box.name


def _headline(box: _Box) -> str:
    """The first line of a box's tooltip."""
    name = fmt.clipped(_name(box), _MOST_LETTERS)
    if box.kind.startswith("idle_"):
        name = f"idle {name}, until {fmt.clipped(box.name, _MOST_LETTERS)}"
    return name if box.events == 1 else f"{box.events:,} events, longest {name}"


def _tooltip(box: _Box) -> str:
    times = "" if box.events == 1 else f"{fmt.duration_ns(box.time_ns)} within "
    return f"{_headline(box)}\n{times}{fmt.duration_ns(box.dur_ns)} from {fmt.duration_ns(box.start_ns)}"


def _grid(scale: int, height: int) -> str:
    """The lines of the axis and their times."""
    parts = []
    for tick in ticks(0, scale, 8):
        share = 100 * tick / scale
        parts.append(element("line", f'class="grid" x1="{share:.4g}%" x2="{share:.4g}%" y1="0" y2="{height}"'))
        if share < 95:
            parts.append(text(f'class="tick" x="{share:.4g}%" dx="3" y="{height + 12}"', fmt.duration(tick)))
    return "".join(parts)


def _behind(timeline: Timeline, lanes: list[tuple[Lane, list[_Box]]], scale: int, height: int) -> str:
    """What is drawn through all lanes: the host's end of the step, and the syncs."""
    parts = []
    for lane, boxes in lanes:
        if lane.kind == "syncs":
            parts += [
                element(
                    "rect", f'class="wait" x="{box.x / 100:g}%" width="{box.width / 100:g}%" y="0" height="{height}"'
                )
                for box in boxes
            ]
    host = timeline.host_ns
    if host is not None and host < 0.995 * scale:
        share = 100 * host / scale
        place = f'class="left" x1="{share:.4g}%" x2="{share:.4g}%" y1="0" y2="{height}"'
        parts.append(element("line", place, title(f"the host left the step, {fmt.duration_ns(host)}")))
    return "".join(parts)


def _words(timeline: Timeline, lanes: list[tuple[Lane, list[_Box]]]) -> str:
    """The picture in words, for those who do not see it."""
    what = "The whole trace" if timeline.step is None else f"Step {timeline.step}"
    parts = []
    for lane, boxes in lanes:
        events, time = sum(box.events for box in boxes), sum(box.time_ns for box in boxes if box.level == 0)
        parts.append(f"{lane.name}: {fmt.plural(events, 'event')}, {fmt.duration_ns(time)} in its first row")
    return f"{what}, {fmt.duration_ns(timeline.span_ns)}. {'; '.join(parts)}."
