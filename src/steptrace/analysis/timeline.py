"""The picture of one step: what runs on the host, on the GPU and on its streams, one below the other.

The step is the median one of the trace; without steps all of the trace is shown. It is cut into equal pieces, about as
many as a picture has columns of pixels, and each lane says which share of a piece's time each of its parts takes, in
whole percent and rounded up: no event is too short. Host and GPU are cut from the division of time, as the overview is.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from steptrace import intervals
from steptrace.analysis.common.division import gpu_division, host_division
from steptrace.analysis.common.registry import part
from steptrace.documents.timeline import Lane, Timeline
from steptrace.intervals import Ints, Spans
from steptrace.trace.columns import spans_of
from steptrace.trace.model import Trace, median_step

#: Pieces of the time shown.
PIECES: Final = 400
#: Most streams with a lane, those with the most time.
MOST_STREAMS: Final = 6
#: What a picture calls the classes of GPU work.
_CLASSES: Final = {"compute": "compute", "comm": "communication", "memory": "copies"}


@part("timeline")
def shown_timeline(trace: Trace) -> Timeline | None:
    """The picture for summary.json; None if nothing that has a lane ran in its time."""
    row, (start, end), index = median_step(trace), trace.window, None
    if row is not None:
        step = trace.steps.iloc[row]
        start, end, index = int(step["ts"]), int(step["ts"] + step["dur"]), int(step["index"])
    edges = np.linspace(start, max(end, start + 1), PIECES + 1).astype(np.int64)
    pieces = edges[:-1], edges[1:]
    waits = trace.syncs[trace.syncs["counted"].to_numpy(dtype=bool)]
    lanes = {"Host": host_division(trace).within(*pieces), "Syncs": _within({"sync": spans_of(waits)}, *pieces)}
    if trace.device is not None:
        lanes["GPU"] = gpu_division(trace).within(*pieces)
        lanes |= _streams(trace, *pieces)
    width = np.maximum(np.diff(edges), 1)
    shown = []
    for name, parts in lanes.items():
        shares = {part: np.ceil(100 * ns / width).astype(int).tolist() for part, ns in parts.items() if ns.any()}
        if shares.keys() - {"other"}:  # a host without any label says nothing
            shown.append(Lane(name=name, parts={part: tuple(share) for part, share in shares.items()}))
    return Timeline(step=index, span_ns=end - start, lanes=tuple(shown)) if shown else None


def _within(parts: Mapping[str, Spans], starts: Ints, ends: Ints) -> dict[str, Ints]:
    """The time of each part in each piece."""
    return {name: intervals.measure_within(intervals.union(spans), starts, ends) for name, spans in parts.items()}


def _streams(trace: Trace, starts: Ints, ends: Ints) -> dict[str, dict[str, Ints]]:
    """The busiest streams of the analysed GPU by number."""
    work = trace.kernels[(trace.kernels["device"] == trace.device).to_numpy()]
    lanes = {}
    for stream, own in work.groupby("stream", sort=True):
        kind = own["kind"].to_numpy(dtype=object)
        parts = {name: spans_of(own[kind == class_]) for class_, name in _CLASSES.items()}
        lanes[f"Stream {stream}"] = _within(parts, starts, ends)
    busy = sorted(lanes, key=lambda name: -sum(int(ns.sum()) for ns in lanes[name].values()))[:MOST_STREAMS]
    return {name: parts for name, parts in lanes.items() if name in busy}
