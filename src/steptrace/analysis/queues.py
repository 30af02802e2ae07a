"""The queue length of each stream as a series in time.

An activity enters its stream's queue when the call that launches it begins, and leaves it when it starts to run. This
is Holistic Trace Analysis's definition, applied to every kind of launch: each kernel of a graph enters with the graph's
one launch. Work without a known launch is left out, and counted. With an empty queue the GPU waits for the host's next
launch; with a full one, none of it a graph's, the host's next launch blocks.
"""

import numpy as np
import pandas as pd

from steptrace.analysis.common.busy import left_over
from steptrace.analysis.common.series import quantiles, time_held
from steptrace.documents.streams import Queue, QueueLength
from steptrace.documents.table import frame_of
from steptrace.intervals import Ints
from steptrace.limits import QUEUE_CAPACITY
from steptrace.trace.model import Trace, launched_at, once


@once
def queue_lengths(trace: Trace) -> pd.DataFrame:
    """The queue of every stream of every GPU as a series (table `queue_lengths`)."""
    # A separate call, so that its arrays are freed before the columns are checked.
    return frame_of(QueueLength, _length_columns(trace))


def _length_columns(trace: Trace) -> dict[str, Ints] | tuple[()]:
    """Columns of `queue_lengths`; a stream's series ends at 0, since all work leaves the queue."""
    linked = trace.kernels["launch"].notna().to_numpy()
    rows = trace.kernels.loc[linked, ["device", "stream", "ts"]]
    if not len(rows):
        return ()
    by_stream = rows.groupby(["device", "stream"], sort=True)
    start, streams = rows["ts"].to_numpy(), by_stream[["device", "stream"]].first()
    # Work that starts before its launch (clocks that disagree) was never in the queue.
    ts = np.concatenate([np.minimum(launched_at(trace)[linked], start), start])
    group = np.tile(by_stream.ngroup().to_numpy(dtype=np.int64), 2)
    order = np.lexsort((ts, group))
    group, ts = group[order], ts[order]
    change = np.repeat(np.array([1, -1], dtype=np.int64), len(rows))[order]
    first = np.flatnonzero(np.append(True, (group[1:] != group[:-1]) | (ts[1:] != ts[:-1])))
    return {
        "device": streams["device"].to_numpy()[group[first]],
        "stream": streams["stream"].to_numpy()[group[first]],
        "ts": ts[first],
        "length": np.cumsum(np.add.reduceat(change, first)),
    }


@once
def queues(trace: Trace) -> pd.DataFrame:
    """The series of `queue_lengths` summarised by time, the busiest stream first (table `queues`)."""
    lengths, kernels = queue_lengths(trace), trace.kernels[~left_over(trace)]
    linked = kernels["launch"].notna().to_numpy()
    grouped = kernels.assign(linked=linked).groupby(["device", "stream"])["linked"]
    sizes, entered = grouped.size().to_dict(), grouped.sum().to_dict()
    if not len(lengths):
        return frame_of(Queue)
    # All streams at once: a group's rows stand together, `first` is where each group begins.
    device, stream, ts, length = (lengths[name].to_numpy() for name in ("device", "stream", "ts", "length"))
    first = np.flatnonzero(np.append(True, (device[1:] != device[:-1]) | (stream[1:] != stream[:-1])))
    group = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(ts))))
    held = time_held(ts)
    held[np.append(first[1:] - 1, len(ts) - 1)] = 0
    span = np.add.reduceat(held, first)
    keys = [*zip(device[first].tolist(), stream[first].tolist(), strict=True)]
    activities = np.array([entered[key] for key in keys], dtype=np.int64)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(span > 0, np.add.reduceat(length * held, first) / span, np.nan)
    table = frame_of(
        Queue,
        {
            "device": device[first],
            "stream": stream[first],
            "activities": activities,
            "unlinked": np.array([sizes[key] for key in keys], dtype=np.int64) - activities,
            "span_ns": span,
            "mean": mean,
            "median": pd.arrays.IntegerArray(quantiles(length, held, group, 0.5), span == 0),
            "p95": pd.arrays.IntegerArray(quantiles(length, held, group, 0.95), span == 0),
            "max": np.maximum.reduceat(length, first),
            "empty_ns": np.add.reduceat(np.where(length == 0, held, 0), first),
            "full_ns": np.add.reduceat(np.where(length >= QUEUE_CAPACITY, held, 0), first),
        },
    )
    return table.sort_values("activities", ascending=False, kind="stable", ignore_index=True)
