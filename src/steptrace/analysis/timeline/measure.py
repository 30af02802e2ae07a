"""The picture of one step: boxes in lanes of host threads, runtime calls, waits, idle gaps and streams.

The step is the median one of the trace; without steps all of the trace is shown. Events in that time are shown,
whichever step launched them, cut off at its edges.

Lanes, from top to bottom: host threads (the one that marks the steps first, then those that run its backward pass, then
the others by their time), with labels above operators; calls into the GPU's runtime, a level a thread; counted
syncs, named by their site; idle gaps of the analysed GPU by cause; its streams.

A picture has some thousand columns of pixels and a step can have a hundred thousand events. So events of one kind, on
one level, each shorter than `window / RESOLUTION` and nearer to each other than that, are one box with their number and
total time; a box ends where the next cell of `CELL` such lengths begins, so that a row of boxes shows where the events
are dense. Longer events stay alone. With more than `MOST_BOXES` boxes, the length below which events merge is doubled
until there are fewer.
"""

import numpy as np
import pandas as pd

from steptrace.analysis.timeline.lanes import Lane, Shown, lanes_of, shown_time
from steptrace.documents.timeline import Lane as ShownLane
from steptrace.documents.timeline import Timeline
from steptrace.trace.model import Trace, once

#: Events shorter than this part of the time shown are indistinguishable in a picture.
RESOLUTION = 1000
MOST_BOXES = 1000
CELL = 8
_LONGEST_NAME = 100
_BOX = ("lane", "level", "kind", "name", "start_ns", "dur_ns", "events", "time_ns")


@once
def timeline(trace: Trace) -> tuple[list[Lane], pd.DataFrame, list[str]]:
    """The lanes and their boxes (see `merge`), and what there is no lane for.

    Times of boxes count from the start of the time shown; `lane` is the place in the list.
    """
    lanes, left_out = lanes_of(trace)
    drawn = [lane.events.assign(lane=number) for number, lane in enumerate(lanes)]
    boxes = _boxes(drawn, shown_time(trace)) if drawn else pd.DataFrame({name: [] for name in _BOX})
    return lanes, boxes, left_out


def merge(events: pd.DataFrame, shorter_than: int) -> pd.DataFrame:
    """The boxes of events: `lane`, `level`, `kind`, `name` of the longest, `start_ns`, `dur_ns` to the end of the last,
    how many `events`, and `time_ns`, their summed length.

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
    events = pd.concat(lanes, ignore_index=True)
    shorter_than = max((time.end - time.start) // RESOLUTION, 1)
    boxes = merge(events, shorter_than)
    while len(boxes) > MOST_BOXES and shorter_than <= time.end - time.start:
        shorter_than *= 2
        boxes = merge(events, shorter_than)
    boxes["start_ns"] -= time.start
    return boxes.sort_values(["lane", "level", "start_ns", "dur_ns", "kind"], kind="stable").reset_index(drop=True)


def shown_timeline(trace: Trace) -> Timeline | None:
    """The picture for summary.json, 20 to 50 kB; None without events.

    Boxes are columns, lane by lane; `what` is the index in `names` and `kinds`.
    """
    lanes, boxes, left_out = timeline(trace)
    if boxes.empty:
        return None
    time = shown_time(trace)
    what, pairs = pd.factorize(pd.MultiIndex.from_frame(boxes[["kind", "name"]]))
    columns = boxes[["start_ns", "dur_ns", "level", "events", "time_ns"]].assign(what=what)
    shown = []
    for number, lane in enumerate(lanes):
        own = columns[(boxes["lane"] == number).to_numpy()]
        values = {str(name): tuple(values.tolist()) for name, values in own.items()}
        shown.append(ShownLane(kind=lane.kind, name=lane.name, **values))
    return Timeline(
        step=None if time.step is None else int(trace.steps["index"].iloc[time.step]),
        span_ns=time.end - time.start,
        host_ns=None if time.host_end is None else time.host_end - time.start,
        left_out=tuple(left_out),
        kinds=tuple(str(kind) for kind, _ in pairs),
        names=tuple(str(name)[:_LONGEST_NAME] for _, name in pairs),
        lanes=tuple(shown),
    )
