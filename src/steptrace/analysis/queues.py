"""How much work was waiting in front of each stream, and how fast copies moved bytes, as series in time.

An activity enters its stream's queue when the call that launches it begins, and leaves it when it begins to run. This
is Holistic Trace Analysis's definition, kept for every kind of launch: each kernel of a graph enters with the graph's
one launch. Work without a known launch is left out and counted. An empty queue means that the GPU depends on the host's
next launch; at 1,024 launches, a graph counting as one, the host's next launch blocks.

Copies stand per kind: the direction, and whether the host's side was pinned or pageable.
"""

from typing import Any

import numpy as np
import pandas as pd

from steptrace import intervals, schema
from steptrace.analysis.common.analysis import Analysis
from steptrace.analysis.common.series import profile, quantile, quantiles, steps_of, time_held
from steptrace.documents.copies import Copy, CopySeries, Series
from steptrace.documents.queues import Queue, QueueLength, QueueSeries
from steptrace.documents.rows import table_of
from steptrace.intervals import Ints
from steptrace.schema import Column, Table
from steptrace.trace.columns import row_numbers, spans_of
from steptrace.trace.model import Trace, launched_at

#: How much work CUDA lets queue up in a stream.
CAPACITY = 1024

QUEUE_LENGTHS = table_of("queue_lengths", QueueLength)
QUEUES = table_of("queues", Queue)


def queue_lengths(trace: Trace) -> pd.DataFrame:
    """The queue of every stream of every GPU as a series (table `queue_lengths`)."""
    # A call of its own: what the columns are made of is freed before they are checked.
    return schema.frame_of(QUEUE_LENGTHS, _length_columns(trace))


def _length_columns(trace: Trace) -> dict[str, Ints] | tuple[()]:
    """Columns of `queue_lengths`: a launch leaves the queue when the first of its activities on the stream begins."""
    launch = row_numbers(trace.kernels["launch"])
    linked = np.flatnonzero(launch >= 0)
    rows = trace.kernels[["device", "stream", "ts"]].iloc[linked].assign(launch=launch[linked])
    # Where clocks disagree and work starts before its launch, it was never in the queue.
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
    known = (before >= 0) & (of[before] == group)
    streams = by_stream[["device", "stream"]].first()
    return {
        "device": streams["device"].to_numpy()[group],
        "stream": streams["stream"].to_numpy()[group],
        "ts": instants,
        "length": length,
        "launches": np.where(known, launches[before], 0),
    }


def queues(trace: Trace, lengths: pd.DataFrame) -> pd.DataFrame:
    """The series of `queue_lengths` summarised by time (table `queues`)."""
    kernels = trace.kernels
    linked = kernels["launch"].notna().to_numpy()
    grouped = kernels.assign(linked=linked).groupby(["device", "stream"])["linked"]
    sizes, entered = grouped.size().to_dict(), grouped.sum().to_dict()
    if not len(lengths):
        return schema.frame_of(QUEUES)
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
    return schema.frame_of(
        QUEUES,
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
    """Group, instant and length after it, of all groups one after the other: what enters leaves, so each ends at 0."""
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


_NS_PER_S = 1e9

COPY_RATES = Table(
    "copy_rates",
    "The rate at which one kind of copy moves bytes, from this instant to the kind's next row.",
    Column("device", "int64", "GPU."),
    Column("kind", "string", "The copy as recorded, such as `Memcpy HtoD (Pinned -> Device)`, or `Memset`."),
    Column("ts", "int64", "Instant.", "ns"),
    Column("running", "int64", "Copies under way."),
    Column("bytes_per_second", "float64", "Sum of their rates, each its bytes over its length.", "B/s"),
    key=("device", "kind", "ts"),
)
COPIES = table_of("copies", Copy, "device", "kind")


def copy_rates(trace: Trace) -> pd.DataFrame:
    """The rate of every kind of copy on every GPU as a series (table `copy_rates`).

    A copy's rate is its bytes over its length, the whole time it runs; the rates of those that run at once add up. One
    that says no bytes, or took no time, has none.
    """
    parts = []
    for (device, kind), rows in _copies(trace).groupby(["device", "kind"], sort=True):
        sized = rows[rows["sized"]]
        if len(sized) == 0:
            continue
        rate = sized["bytes"].to_numpy(dtype=np.float64) / sized["dur"].to_numpy() * _NS_PER_S
        times = spans_of(sized).T.ravel()
        instants, running = steps_of(times, np.repeat(np.array([1, -1], dtype=np.int64), len(sized)))
        _, total = steps_of(times, np.concatenate([rate, -rate]))
        # What is added and taken away again leaves rounding errors: none may stay once nothing runs.
        total = np.where(running == 0, 0.0, np.maximum(total, 0.0))
        columns = {"device": device, "kind": kind, "ts": instants, "running": running, "bytes_per_second": total}
        parts.append(pd.DataFrame(columns))
    return schema.validate(pd.concat([schema.frame_of(COPY_RATES), *parts], ignore_index=True), COPY_RATES)


def copies(trace: Trace, rates: pd.DataFrame) -> pd.DataFrame:
    """The kinds of copies with their bytes, time and rates, the most time first (table `copies`)."""
    series = dict(iter(rates.groupby(["device", "kind"])))
    rows: list[dict[str, Any]] = []
    for key, group in _copies(trace).groupby(["device", "kind"], sort=True):
        known = group.loc[group["bytes"].notna(), "bytes"]
        row = {"device": key[0], "kind": key[1], "count": len(group), "unsized": int((~group["sized"]).sum())}
        # The time is known of all of them, whether or not they say their bytes.
        row["ns"] = intervals.measure(intervals.union(spans_of(group)))
        row["bytes"], row["median_bytes"] = (known.sum(), known.median()) if len(known) else (None, None)
        rows.append(row | _rates(series.get(key)))
    rows.sort(key=lambda row: (-row["ns"], row["kind"]))
    return schema.frame_of(COPIES, rows)


def _rates(series: pd.DataFrame | None) -> dict[str, float | None]:
    if series is None:
        return dict.fromkeys(f"{name}_bytes_per_second" for name in ("mean", "median", "max"))
    running = series["running"].to_numpy() > 0
    held = time_held(series["ts"].to_numpy())[running]
    rate = series["bytes_per_second"].to_numpy()[running]
    return {
        "mean_bytes_per_second": float((rate * held).sum() / held.sum()),
        "median_bytes_per_second": quantile(rate, held, 0.5),
        "max_bytes_per_second": float(rate.max()),
    }


def _copies(trace: Trace) -> pd.DataFrame:
    """The copies and sets by GPU and kind; a set's name says no more than that it is one."""
    kernels = trace.kernels
    rows = kernels[(kernels["kind"] == "memory").to_numpy()]
    name = rows["name"].astype(object).to_numpy()
    is_set = (rows["category"] == "memset").to_numpy()
    return pd.DataFrame(
        {
            "device": rows["device"].to_numpy(),
            "kind": np.where(is_set, "Memset", name),
            "ts": rows["ts"].to_numpy(),
            "dur": rows["dur"].to_numpy(),
            "bytes": rows["bytes"].array,
            "sized": (rows["bytes"].notna() & (rows["dur"] > 0)).to_numpy(),
        }
    )


#: How many streams and kinds of copies of the analysed GPU are drawn, and in how many buckets.
MOST_DRAWN, BUCKETS = 6, 150


def series(analysis: Analysis) -> Series | None:
    """The busiest streams and kinds of copies of the analysed GPU, with the mean and the maximum of each bucket."""
    if analysis.device is None:
        return None
    wanted = ("queue_lengths", "copy_rates", "queues", "copies")
    tables = {name: analysis.tables[name] for name in wanted}
    tables = {name: table[table["device"] == analysis.device] for name, table in tables.items()}
    times = pd.concat([tables["queue_lengths"]["ts"], tables["copy_rates"]["ts"]])
    if len(times) == 0 or times.max() - times.min() < BUCKETS:
        return None
    edges = np.linspace(times.min(), times.max(), BUCKETS + 1).astype(np.int64)
    streams = tables["queues"].nlargest(MOST_DRAWN, "activities")["stream"]
    kinds = tables["copies"].nlargest(MOST_DRAWN, "bytes")["kind"]
    return Series(
        edges=(int(edges[0]), int(edges[-1])),
        queues=tuple(
            QueueSeries(stream=int(stream), **_profile(tables["queue_lengths"], "stream", stream, edges))
            for stream in streams
        ),
        copies=tuple(
            CopySeries(kind=str(kind), **_profile(tables["copy_rates"], "kind", kind, edges))
            for kind in kinds
            if (tables["copy_rates"]["kind"] == kind).any()
        ),
    )


def _profile(table: pd.DataFrame, by: str, key: object, edges: Ints) -> dict[str, tuple[float, ...]]:
    rows = table[(table[by] == key).to_numpy()]
    values = rows["length"] if by == "stream" else rows["bytes_per_second"]
    mean, highest = profile(rows["ts"].to_numpy(), values.to_numpy(), edges)
    return {
        name: tuple(float(f"{value:.4g}") for value in column) for name, column in (("mean", mean), ("max", highest))
    }
