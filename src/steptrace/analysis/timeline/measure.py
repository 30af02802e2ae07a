"""The picture of one step: boxes in lanes of host threads, runtime calls, waits, idle gaps and streams.

The step is the median one of the trace; without steps all of the trace is shown. Events in that time are shown,
whichever step launched them, cut off at its edges.

Lanes, from top to bottom: host threads (the one that marks the steps first, then those that run its backward pass, then
the others by their time), with labels above operators; calls into the GPU's runtime, a level a thread; counted
synchronisations, named by their site; idle gaps of the analysed GPU by cause; its streams.

A picture has some thousand columns of pixels and a step can have a hundred thousand events. So events of one kind, on
one level, each shorter than `window / RESOLUTION` and nearer to each other than that, are one box with their number and
total time; a box ends where the next cell of `CELL` such lengths begins, so that a row of boxes shows where the events
are dense. Longer events stay alone. With more than `MOST_BOXES` boxes, the length below which events merge is doubled
until there are fewer.
"""

from typing import Annotated

import numpy as np
import pandas as pd

from steptrace.analysis.idle import idle_gaps
from steptrace.analysis.syncs import sync_costs
from steptrace.analysis.timeline.lanes import Shown, lanes_of, shown_time
from steptrace.documents.base import Document, field
from steptrace.documents.column import key
from steptrace.documents.table import frame_of
from steptrace.documents.timeline import Lane, Timeline
from steptrace.trace.model import Trace, once

#: Events shorter than this part of the time shown are indistinguishable in a picture.
RESOLUTION = 1000
MOST_BOXES = 1000
CELL = 8
_LONGEST_NAME = 100


class LaneRow(Document, frozen=True):
    """One lane of the picture of a step, from top to bottom."""

    lane: Annotated[int, key("", "Its number.")]
    kind: Annotated[str, field("`host` (a thread), `calls` (into the GPU's runtime), `syncs`, `idle` or `stream`.")]
    name: Annotated[str, field("What stands at it.")]
    events: Annotated[int, field("Events in the time shown.")]
    shown: Annotated[bool, field("Whether it has boxes: of many threads and streams those with the most time do.")]


class BoxRow(Document, frozen=True):
    """One box of the picture of a step: an event, or several of one kind, each too short to be seen, that stand too
    close to be distinguished. Times count from the start of the time shown."""

    lane: Annotated[int, field("Row of `timeline_lanes`.")]
    level: Annotated[int, field("Row of boxes within the lane, 0 at the top.")]
    kind: Annotated[
        str,
        field(
            "`section` (label), `loader`, `op`, `launch`, `call`, `sync`, `compute`, `comm`, `memory`, or "
            "`idle_` with the cause."
        ),
    ]
    name: Annotated[str, field("Name of the event, of several the longest's.")]
    start_ns: Annotated[int, field("Start, cut off at the start of the time shown.", "ns")]
    dur_ns: Annotated[int, field("From its start to the end of its last event.", "ns")]
    events: Annotated[int, field("How many events it stands for.")]
    time_ns: Annotated[int, field("Sum of their lengths within the time shown.", "ns")]


@once
def timeline(trace: Trace, device: int | None) -> dict[str, pd.DataFrame]:
    """The tables `timeline_lanes` and `timeline`; both are empty without events. Without GPU work `device` is None."""
    lanes = lanes_of(trace, device, sync_costs(trace, device), None if device is None else idle_gaps(trace, device))
    rows = [
        {"lane": number, "kind": lane.kind, "name": lane.name, "events": len(lane.events), "shown": lane.shown}
        for number, lane in enumerate(lanes)
    ]
    drawn = [lane.events.assign(lane=number) for number, lane in enumerate(lanes) if lane.shown]
    boxes = _boxes(drawn, shown_time(trace))
    return {"timeline_lanes": frame_of(LaneRow, rows), "timeline": frame_of(BoxRow, boxes)}


def merge(events: pd.DataFrame, shorter_than: int) -> pd.DataFrame:
    """The boxes of events: the columns of the table `timeline`, start and end in the events' time.

    Two neighbours of one lane, level and kind share a box if both are shorter than `shorter_than`, the gap between the
    second and the short ones before it is, too, and both start in the same cell of `CELL * shorter_than`.
    """
    keys = ["lane", "level", "kind"]
    group = events.groupby(keys, sort=True).ngroup().to_numpy()
    order = np.lexsort((-events["end"].to_numpy(), events["start"].to_numpy(), group))
    events, group = events.iloc[order].reset_index(drop=True), group[order]
    start, end = events["start"].to_numpy(), events["end"].to_numpy()
    small = end - start < shorter_than
    reach = events["end"].where(small, -1).groupby(group).cummax().to_numpy()
    apart = np.ones(len(events), dtype=bool)
    apart[1:] = (group[1:] != group[:-1]) | ~small[1:] | ~small[:-1] | (start[1:] - reach[:-1] >= shorter_than)
    cell = start // (CELL * shorter_than)
    apart[1:] |= cell[1:] != cell[:-1]
    box = np.cumsum(apart) - 1
    first = np.flatnonzero(apart)
    longest = (events["end"] - events["start"]).groupby(box).idxmax().to_numpy()
    last = events["end"].groupby(box).max().to_numpy(dtype=np.int64)
    return pd.DataFrame(
        {
            **{key: events[key].to_numpy()[first] for key in keys},
            "name": events["name"].to_numpy(dtype=object)[longest],
            "start_ns": start[first],
            "dur_ns": last - start[first],
            "events": np.bincount(box, minlength=len(first)).astype(np.int64),
            "time_ns": (events["end"] - events["start"]).groupby(box).sum().to_numpy(dtype=np.int64),
        }
    )


def _boxes(lanes: list[pd.DataFrame], time: Shown) -> pd.DataFrame:
    if not lanes:
        return frame_of(BoxRow)
    events = pd.concat(lanes, ignore_index=True)
    shorter_than = max((time.end - time.start) // RESOLUTION, 1)
    boxes = merge(events, shorter_than)
    while len(boxes) > MOST_BOXES and shorter_than <= time.end - time.start:
        shorter_than *= 2
        boxes = merge(events, shorter_than)
    boxes["start_ns"] -= time.start
    return boxes.sort_values(["lane", "level", "start_ns", "dur_ns", "kind"], kind="stable").reset_index(drop=True)


def shown_timeline(trace: Trace, device: int | None) -> Timeline | None:
    """The tables' content for summary.json; None without events.

    Its 20 to 50 kB are all that a page needs, so a page can be made without the tables. Boxes are columns, lane by
    lane; `what` is the index in `names` and `kinds`.
    """
    lanes, boxes = timeline(trace, device).values()
    if len(boxes) == 0:
        return None
    time = shown_time(trace)
    what, pairs = pd.factorize(pd.MultiIndex.from_frame(boxes[["kind", "name"]]))
    columns = boxes[["start_ns", "dur_ns", "level", "events", "time_ns"]].assign(what=what)
    shown = []
    for lane in lanes[lanes["shown"].to_numpy()].itertuples():
        own = columns[(boxes["lane"] == lane.lane).to_numpy()]
        values = {str(name): tuple(values.tolist()) for name, values in own.items()}
        shown.append(Lane(kind=str(lane.kind), name=str(lane.name), **values))
    return Timeline(
        step=None if time.step is None else int(trace.steps["index"].iloc[time.step]),
        from_ns=time.start,
        span_ns=time.end - time.start,
        host_ns=None if time.host_end is None else time.host_end - time.start,
        events=int(lanes["events"].sum()),
        left_out=tuple(str(name) for name in lanes.loc[~lanes["shown"], "name"]),
        kinds=tuple(str(kind) for kind, _ in pairs),
        names=tuple(str(name)[:_LONGEST_NAME] for _, name in pairs),
        lanes=tuple(shown),
    )
