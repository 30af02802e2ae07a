"""How much work was waiting in front of each stream: the queue that the host fills and the GPU drains.

An activity enters its stream's queue when the call that launches it begins, and leaves it when it begins to run. This
is Holistic Trace Analysis's definition, kept for every kind of launch: each kernel of a graph enters with the graph's
one launch. Work without a known launch is left out and counted. An empty queue means that the GPU depends on the host's
next launch; at 1,024 launches, a graph counting as one, the host's next launch blocks.
"""

from typing import cast

import numpy as np
import pandas as pd

from steptrace import schema
from steptrace.analysis.common.launches import launched_at
from steptrace.analysis.common.series import quantile, steps_of, time_held
from steptrace.analysis.common.tables_launch import QUEUE_LENGTHS, QUEUES
from steptrace.intervals import Ints
from steptrace.trace.columns import row_numbers
from steptrace.trace.model import Trace

#: How much work CUDA lets queue up in a stream.
CAPACITY = 1024


def queue_lengths(trace: Trace) -> pd.DataFrame:
    """The queue of every stream of every GPU as a series (table `queue_lengths`)."""
    return schema.validate(_series(trace), QUEUE_LENGTHS)


def queues(trace: Trace, lengths: pd.DataFrame) -> pd.DataFrame:
    """The series of `queue_lengths` summarised by time (table `queues`)."""
    kernels = trace.kernels
    linked = kernels["launch"].notna().to_numpy()
    grouped = kernels.assign(linked=linked).groupby(["device", "stream"])["linked"]
    sizes, entered = grouped.size().to_dict(), grouped.sum().to_dict()
    rows = []
    for key, series in lengths.groupby(["device", "stream"], sort=True):
        device, stream = cast("tuple[int, int]", key)
        length = series["length"].to_numpy()
        held = time_held(series["ts"].to_numpy())
        span = int(held.sum())
        rows.append(
            {
                "device": device,
                "stream": stream,
                "activities": int(entered[device, stream]),
                "unlinked": int(sizes[device, stream] - entered[device, stream]),
                "span_ns": span,
                "mean": float((length * held).sum() / span) if span else None,
                "median": quantile(length, held, 0.5),
                "p95": quantile(length, held, 0.95),
                "max": int(length.max()),
                "empty_ns": int(held[length == 0].sum()),
                "full_ns": int(held[series["launches"].to_numpy() >= CAPACITY].sum()),
            }
        )
    table = pd.DataFrame(rows) if rows else schema.empty(QUEUES)
    table = table.astype({"mean": "float64", "median": "Int64", "p95": "Int64"})
    return schema.validate(table, QUEUES)


def _series(trace: Trace) -> pd.DataFrame:
    """The series of all streams; a launch leaves the queue when the first of its activities on the stream begins."""
    launch = row_numbers(trace.kernels["launch"])
    linked = np.flatnonzero(launch >= 0)
    rows = trace.kernels[["device", "stream", "ts"]].iloc[linked].assign(launch=launch[linked])
    # Where clocks disagree and work starts before its launch, it was never in the queue.
    rows["enters"] = np.minimum(launched_at(trace)[linked], rows["ts"])
    parts = []
    for key, of_stream in rows.groupby(["device", "stream"], sort=True):
        device, stream = cast("tuple[int, int]", key)
        instants, length = _length(of_stream)
        at, launches = _length(of_stream.groupby("launch")[["enters", "ts"]].min())
        launches = np.append(launches, 0)[np.searchsorted(at, instants, side="right") - 1]
        parts.append(
            pd.DataFrame({"device": device, "stream": stream, "ts": instants, "length": length, "launches": launches})
        )
    return pd.concat(parts, ignore_index=True) if parts else schema.empty(QUEUE_LENGTHS)


def _length(rows: pd.DataFrame) -> tuple[Ints, Ints]:
    change = np.repeat(np.array([1, -1], dtype=np.int64), len(rows))
    return steps_of(np.concatenate([rows["enters"], rows["ts"]]), change)
