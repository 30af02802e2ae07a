"""The queue length of each stream as a series in time.

An activity enters its stream's queue when the call that launches it begins, and leaves it when it starts to run. This
is Holistic Trace Analysis's definition, applied to every kind of launch: each kernel of a graph enters with the graph's
one launch. Work without a known launch is left out, and counted. With an empty queue the GPU waits for the host's next
launch; at 1,024 launches, a graph counting as one, the host's next launch blocks.
"""

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.series import quantiles, time_held
from steptrace.documents.queues import Queue, QueueLength
from steptrace.documents.table import frame_of
from steptrace.intervals import Ints
from steptrace.trace.columns import row_numbers
from steptrace.trace.model import Trace, launched_at, once

#: Launches that CUDA lets queue up in a stream.
CAPACITY = 1024


@once
def queue_lengths(trace: Trace) -> pd.DataFrame:
    """The queue of every stream of every GPU as a series (table `queue_lengths`)."""
    # A separate call, so that its arrays are freed before the columns are checked.
    return frame_of(QueueLength, _length_columns(trace))


def _length_columns(trace: Trace) -> dict[str, Ints] | tuple[()]:
    """Columns of `queue_lengths`: a launch leaves the queue when the first of its activities on the stream begins."""
    launch = row_numbers(trace.kernels["launch"])
    linked = np.flatnonzero(launch >= 0)
    rows = trace.kernels[["device", "stream", "ts"]].iloc[linked].assign(launch=launch[linked])
    # Work that starts before its launch (clocks that disagree) was never in the queue.
    rows["enters"] = np.minimum(launched_at(trace)[linked], rows["ts"])
    if not len(rows):
        return ()
    by_stream = rows.groupby(["device", "stream"], sort=True)
    rows["group"] = by_stream.ngroup()
    group, instants, length = _lengths(rows)
    of, at, launches = _lengths(rows.groupby(["group", "launch"])[["enters", "ts"]].min().reset_index("group"))
    # The number of launches at the last change of the same stream: group and time in one number that sorts as they do.
    times = intervals.distinct(np.concatenate([instants, at]))
    before = np.searchsorted(_key(of, at, times), _key(group, instants, times), side="right") - 1
    has_before = (before >= 0) & (of[before] == group)
    streams = by_stream[["device", "stream"]].first()
    return {
        "device": streams["device"].to_numpy()[group],
        "stream": streams["stream"].to_numpy()[group],
        "ts": instants,
        "length": length,
        "launches": np.where(has_before, launches[before], 0),
    }


@once
def queues(trace: Trace) -> pd.DataFrame:
    """The series of `queue_lengths` summarised by time (table `queues`)."""
    lengths, kernels = queue_lengths(trace), trace.kernels
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
    return frame_of(
        Queue,
        {
            "device": device[first],
            "stream": stream[first],
            "activities": activities,
            "unlinked": np.array([sizes[key] for key in keys], dtype=np.int64) - activities,
            "span_ns": span,
            "mean": mean,
            "median": quantiles(length, held, group, 0.5),
            "p95": quantiles(length, held, group, 0.95),
            "max": np.maximum.reduceat(length, first),
            "empty_ns": np.add.reduceat(np.where(length == 0, held, 0), first),
            "full_ns": np.add.reduceat(np.where(lengths["launches"].to_numpy() >= CAPACITY, held, 0), first),
        },
    )


def _lengths(rows: pd.DataFrame) -> tuple[Ints, Ints, Ints]:
    """Group, instant and the length from it on, group by group; each ends at 0, since all work leaves the queue."""
    group = np.tile(rows["group"].to_numpy(), 2)
    ts = np.concatenate([rows["enters"], rows["ts"]])
    order = np.lexsort((ts, group))
    group, ts = group[order], ts[order]
    change = np.repeat(np.array([1, -1], dtype=np.int64), len(rows))[order]
    first = np.flatnonzero(np.append(True, (group[1:] != group[:-1]) | (ts[1:] != ts[:-1])))
    return group[first], ts[first], np.cumsum(np.add.reduceat(change, first))


def _key(group: Ints, ts: Ints, times: Ints) -> Ints:
    key: Ints = group * len(times) + np.searchsorted(times, ts)
    return key
