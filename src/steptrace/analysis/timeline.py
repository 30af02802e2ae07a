"""The picture of one step: what runs on the host, on the GPU and on its streams, one lane below the other.

The step is the median one of the trace; a trace without steps is shown as a whole. A lane is made of boxes. The step is
divided into pieces, which are about as short as an eye can tell apart. Events that are shorter than a piece are joined
into one box with those of the same part that begin in the same piece. Such a box is as long as all of its events, so no
time is lost or added, and it is less than a piece away from where they ran. A picture with too many boxes has longer
pieces.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from steptrace.analysis.common.call_tree import kernel_origins
from steptrace.analysis.common.division import Division, gpu_division, host_division
from steptrace.analysis.common.kernel_names import short_name
from steptrace.analysis.common.registry import part, reads
from steptrace.documents.timeline import Box, Lane, LaneKind, Timeline
from steptrace.intervals import Ints, Spans
from steptrace.trace.columns import references, row_numbers, spans_of
from steptrace.trace.model import Trace, on_training, once, shown_time
from steptrace.trace.source import sites_of

#: Pieces of the time shown.
PIECES: Final = 240
#: Most boxes of all lanes: a page carries each of them.
MOST_BOXES: Final = 800
#: Most streams with a lane, those with the most time; and most threads with a lane of operators.
MOST_STREAMS: Final = 6
MOST_THREADS: Final = 2
#: What a picture calls the classes of GPU work.
_CLASSES: Final = {"compute": "compute", "comm": "communication", "memory": "copies"}
#: Time that is in no part of the host's step.
_OTHER: Final = "other"


@dataclass(frozen=True)
class Events:
    """The events of one lane in order: for each its span, its part, and its row in its table (-1 without one)."""

    name: str
    kind: LaneKind
    spans: Spans
    part: NDArray[Any]
    row: Ints

    def within(self, start: int, end: int) -> "Events":
        """The events that run in a time, cut off at its ends."""
        inside = (self.spans[:, 0] < end) & (self.spans[:, 1] > start)
        spans = np.clip(self.spans[inside], start, end)
        order = np.argsort(spans[:, 0], kind="stable")
        return replace(self, spans=spans[order], part=self.part[inside][order], row=self.row[inside][order])

    def shifted(self, by: int) -> "Events":
        """The events on another clock."""
        return replace(self, spans=self.spans + by)


@part("timeline")
@reads("kernel_origins")
@once
def shown_timeline(trace: Trace) -> Timeline | None:
    """The picture for summary.json; None if nothing that has a lane ran in its time."""
    index, start, end = shown_time(trace)
    end = max(end, start + 1)
    lanes = [events.within(start, end) for events in _lanes(trace)]
    lanes = [events for events in lanes if len(events.spans)]
    boxes = boxes_of(lanes, start, end - start)
    shown = tuple(_lane(trace, events, chosen) for events, chosen in zip(lanes, boxes, strict=True))
    return Timeline(step=index, span_ns=end - start, lanes=shown) if shown else None


def _lanes(trace: Trace) -> list[Events]:
    """All that has a lane, from top to bottom, in all of the trace."""
    lanes = [of_division("Host", "host", host_division(trace)), *_operators(trace)]
    counted = np.flatnonzero(trace.syncs["counted"].to_numpy(dtype=bool))
    waits = trace.syncs.iloc[counted]
    lanes.append(Events("Syncs", "syncs", spans_of(waits), _all_of("sync", waits), counted))
    if trace.device is not None:
        lanes += [of_division("GPU", "gpu", gpu_division(trace)), *_streams(trace)]
    return lanes


def of_division(name: str, kind: LaneKind, division: Division) -> Events:
    """The lane of a division; time in no part is left out."""
    parts = np.array(division.parts, dtype=object)[division.part] if len(division.part) else np.empty(0, dtype=object)
    named = parts != _OTHER
    return Events(name, kind, division.spans[named], parts[named], np.full(int(named.sum()), -1))


def _operators(trace: Trace) -> list[Events]:
    """The operators that the program or a backward node calls, by thread, the steps' thread first."""
    called = np.flatnonzero((row_numbers(trace.ops["parent"]) < 0) & on_training(trace, trace.ops))
    threads = trace.ops["thread"].to_numpy()[called]
    time = trace.ops["dur"].to_numpy()[called]
    by_time = sorted(set(threads.tolist()), key=lambda thread: -int(time[threads == thread].sum()))
    of_steps = set(trace.steps["thread"].tolist())
    chosen = sorted(by_time, key=lambda thread: thread not in of_steps)[:MOST_THREADS]
    lanes = []
    for number, thread in enumerate(chosen):
        rows = called[threads == thread]
        ops = trace.ops.iloc[rows]
        name = "Operators" if number == 0 else "Other thread"
        lanes.append(Events(name, "operators", spans_of(ops), _all_of("operator", ops), rows))
    return lanes


def _streams(trace: Trace) -> list[Events]:
    """The busiest streams of the analysed GPU by number."""
    of_device = np.flatnonzero((trace.kernels["device"] == trace.device).to_numpy())
    streams, time = (trace.kernels[name].to_numpy()[of_device] for name in ("stream", "dur"))
    busy = sorted(set(streams.tolist()), key=lambda stream: -int(time[streams == stream].sum()))[:MOST_STREAMS]
    lanes = []
    for stream in sorted(busy):
        rows = of_device[streams == stream]
        work = trace.kernels.iloc[rows]
        parts = work["kind"].astype(object).map(_CLASSES).to_numpy()
        lanes.append(Events(f"Stream {stream}", "stream", spans_of(work), parts, rows))
    return lanes


def _all_of(part: str, rows: pd.DataFrame) -> NDArray[Any]:
    return np.full(len(rows), part, dtype=object)


def boxes_of(lanes: Sequence[Events], start: int, span: int) -> list[pd.DataFrame]:
    """The boxes of each lane of a picture that begins at `start`; pieces are so long that there are not too many."""
    piece = span / PIECES
    boxes = [_boxes(events, start, piece) for events in lanes]
    while sum(map(len, boxes)) > MOST_BOXES and piece < span:
        piece *= 2
        boxes = [_boxes(events, start, piece) for events in lanes]
    return boxes


def _boxes(events: Events, start: int, piece: float) -> pd.DataFrame:
    """The boxes of a lane in order: `start` (from `start`), `dur`, `part`, `count`, and the `row` of the longest."""
    begin = events.spans[:, 0] - start
    length = events.spans[:, 1] - events.spans[:, 0]
    # An event of a piece or more stands alone: its group is its own, and no number of a piece.
    alone = length >= piece
    group = np.where(alone, -1 - np.arange(len(begin)), (begin / piece).astype(np.int64))
    table = pd.DataFrame({"group": group, "part": events.part, "start": begin, "dur": length, "row": events.row})
    table = table.sort_values("dur", ascending=False, kind="stable")
    groups = table.groupby(["group", "part"], sort=False)
    boxes = groups.agg(start=("start", "min"), dur=("dur", "sum"), count=("dur", "size"), row=("row", "first"))
    boxes = boxes.reset_index().sort_values("start", kind="stable", ignore_index=True)
    # What begins in one piece is drawn one after the other. Events that overlap by themselves, such as collectives of
    # one stream that end late, are not pushed on further than that.
    ends = (boxes["start"] + boxes["dur"]).to_numpy()
    before = np.concatenate([[0], np.maximum.accumulate(ends)[:-1]]) if len(ends) else ends
    pushed = np.minimum(np.maximum(boxes["start"].to_numpy(), before), boxes["start"].to_numpy() + int(piece))
    boxes["start"] = pushed
    return boxes[boxes["dur"] > 0]


def _lane(trace: Trace, events: Events, boxes: pd.DataFrame) -> Lane:
    """A lane of the picture with the names and places of its boxes."""
    rows = boxes["row"].to_numpy(dtype=np.int64)
    return Lane(name=events.name, kind=events.kind, boxes=joined(boxes, *_named(trace, events.kind, rows)))


def joined(
    boxes: pd.DataFrame,
    names: Sequence[str | None] = (),
    files: Sequence[str | None] = (),
    lines: Sequence[int | None] = (),
) -> tuple[Box, ...]:
    """The boxes of a lane, with names, files and lines where there are some."""
    start, dur, part, count = (boxes[name].tolist() for name in ("start", "dur", "part", "count"))
    if not names:
        return tuple(map(Box, start, dur, part))
    return tuple(map(Box, start, dur, part, names, count, files, lines))


def _named(trace: Trace, kind: LaneKind, rows: Ints) -> tuple[list[str | None], list[str | None], list[int | None]]:
    """The name, file and line of each event of a lane, by its row in its table."""
    if kind in ("host", "gpu"):
        nothing: list[Any] = [None] * len(rows)
        return nothing, nothing, nothing
    if kind == "stream":
        names = [short_name(name) for name in trace.kernels["name"].iloc[rows].astype(str)]
        places = kernel_origins(trace).iloc[rows]
    elif kind == "syncs":
        syncs = trace.syncs.iloc[rows]
        places = sites_of(trace, syncs, trace.lines)
        names = [op if isinstance(op, str) else wait for op, wait in zip(places["op"], syncs["kind"], strict=True)]
    else:
        ops = trace.ops.iloc[rows]
        names = ops["name"].astype(str).tolist()
        events: Any = {"ts": ops["ts"].to_numpy(), "thread": ops["thread"].to_numpy(), "op": references(rows)}
        places = sites_of(trace, pd.DataFrame(events), trace.lines)
    files = [file if isinstance(file, str) else None for file in places["file"]]
    lines = [None if pd.isna(line) else int(line) for line in places["line"]]
    return list(names), files, lines
