"""One step of a trace as a trace for Perfetto that is small enough to be part of a page.

`excerpt` copies events of the file. This one is made from the tables, so that the file is not read again. Its size is
limited: of a step with more events the longest are kept, and the file says how many are left out.
"""

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import pandas as pd

from steptrace.intervals import Ints
from steptrace.trace.columns import map_names, row_numbers
from steptrace.trace.decode import path_text
from steptrace.trace.files import EXCERPT_KEY
from steptrace.trace.model import ShownTime, Trace, shown_time
from steptrace.trace.names import step_index

#: Most bytes of the gzipped file: a page that carries it stays well below half a megabyte.
MOST_BYTES: Final = 40_000
#: Most events of the first attempt. Ten of them take about a hundred bytes.
_MOST_EVENTS: Final = 8_000
#: If the file is too large, the next attempt has this share of the events that would fit.
_SAFETY: Final = 0.9
#: The process of the host's threads; the process of a GPU is this plus 1 plus its number.
_HOST: Final = 1
#: Categories of host events by their table, and of GPU work by its own category.
_HOST_CATEGORIES: Final = {
    "labels": "user_annotation",
    "launches": "cuda_runtime",
    "ops": "cpu_op",
    "frames": "python_function",
}
_GPU_CATEGORIES: Final = {"kernel": "kernel", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}


@dataclass(frozen=True)
class StepExcerpt:
    """The gzipped file, how many events it holds, and how many the step has."""

    data: bytes
    events: int
    of: int


def step_excerpt(trace: Trace, most_bytes: int = MOST_BYTES) -> StepExcerpt | None:
    """The median step, or the whole trace where it marks none; None where nothing ran in it."""
    shown = shown_time(trace)
    events = _events(trace, shown)
    if not len(events):
        return None
    by_length = np.argsort(-_weight(events), kind="stable")
    count = min(len(events), _MOST_EVENTS)
    data = _written(trace, events.iloc[np.sort(by_length[:count])], shown.start, len(events))
    while len(data) > most_bytes and count > 1:
        count = max(int(count * _SAFETY * most_bytes / len(data)), 1)
        data = _written(trace, events.iloc[np.sort(by_length[:count])], shown.start, len(events))
    return StepExcerpt(data, count, len(events))


def _weight(events: pd.DataFrame) -> Ints:
    """The order in which events are kept: long ones first, and the calls that launched long work."""
    dur = events["dur"].to_numpy(dtype=np.int64)
    correlation = events["correlation"].to_numpy()
    longest = events[correlation >= 0].groupby("correlation")["dur"].max()
    of_work = longest.reindex(correlation).fillna(0).to_numpy(dtype=np.int64)
    weight: Ints = np.maximum(dur, of_work)
    return weight


def _events(trace: Trace, shown: ShownTime) -> pd.DataFrame:
    """The events in a span of time, in order: `cat`, `name`, `pid`, `tid`, `ts`, `dur`, `correlation` (-1 for none)."""
    parts = []
    host_end = _host_end(trace, shown)
    for name, category in _HOST_CATEGORIES.items():
        table = _cut(_inside(getattr(trace, name), shown), shown.start, host_end)
        if name == "labels":
            # If a step's work outlasts it, the next step has begun. That one is not whole, so it is not marked.
            table = table[map_names(table["name"], lambda label: step_index(label) in (None, shown.step))]
        tid = trace.threads["tid"].to_numpy(dtype=object)[table["thread"].to_numpy()]
        correlation = row_numbers(table["correlation"]) if name == "launches" else np.full(len(table), -1)
        parts.append(_frame(table, category, _HOST, tid, correlation))
    work = _cut(_inside(trace.kernels, shown), shown.start, shown.end)
    of_gpu = work["category"].astype(object).map(_GPU_CATEGORIES).to_numpy()
    pid = _HOST + 1 + work["device"].to_numpy()
    parts.append(_frame(work, of_gpu, pid, work["stream"].to_numpy(), row_numbers(work["correlation"])))
    events = pd.concat([part for part in parts if len(part)] or [parts[0]], ignore_index=True)
    return events.sort_values("ts", kind="stable", ignore_index=True)


def _inside(table: pd.DataFrame, shown: ShownTime) -> pd.DataFrame:
    ts, dur = table["ts"].to_numpy(), table["dur"].to_numpy()
    inside: pd.DataFrame = table[(ts < shown.end) & (ts + dur > shown.start)]
    return inside


def _host_end(trace: Trace, shown: ShownTime) -> int:
    """Where the step ends on the host; its work may end later."""
    if shown.step is None:
        return shown.end
    # By its start: steps of two recordings in one trace can have the same numbers.
    step = trace.steps[trace.steps["ts"] == shown.start]
    return int((step["ts"] + step["host_dur"]).iloc[0])


def _cut(table: pd.DataFrame, start: int, end: int) -> pd.DataFrame:
    """The events with those that cross the step's beginning or its end cut there.

    Perfetto draws what nests: a function that goes on into the next step would overlap the step's label. No time is
    before the step's beginning, which is 0.
    """
    begun = table["ts"].to_numpy(dtype=np.int64)
    ended = begun + table["dur"].to_numpy(dtype=np.int64)
    ended = np.where((begun < end) & (ended > end), end, ended)
    begun = np.maximum(begun, start)
    return table.assign(ts=begun, dur=np.maximum(ended - begun, 0))


def _frame(table: pd.DataFrame, category: Any, pid: Any, tid: Any, correlation: Ints) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "cat": category,
            "name": table["name"].astype(str).to_numpy(dtype=object),
            "pid": pid,
            "tid": tid,
            "ts": table["ts"].to_numpy(),
            "dur": table["dur"].to_numpy(),
            "correlation": correlation,
        }
    )


def _written(trace: Trace, events: pd.DataFrame, start: int, events_of_step: int) -> bytes:
    content = {
        # The first key: `is_excerpt` knows a file by its beginning.
        EXCERPT_KEY: {"of": path_text(trace.path.name), "events": len(events), "of_events": events_of_step},
        "displayTimeUnit": "ms",
        "traceEvents": [*_names(events), *_spans(events, start), *_arrows(events, start)],
    }
    # Without file name and time in the gzip header: equal excerpts are equal files.
    return gzip.compress(msgspec.json.encode(content), compresslevel=9, mtime=0)


def _names(events: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Events that name processes and threads."""
    for pid, tid in dict.fromkeys(zip(events["pid"].tolist(), events["tid"].tolist(), strict=True)):
        process = "Host" if pid == _HOST else f"GPU {pid - _HOST - 1}"
        thread = f"thread {tid}" if pid == _HOST else f"stream {tid}"
        for what, name in (("process_name", process), ("thread_name", thread)):
            yield {"ph": "M", "name": what, "pid": pid, "tid": _number(tid), "args": {"name": name}}


def _spans(events: pd.DataFrame, start: int) -> Iterator[dict[str, Any]]:
    columns = ("cat", "name", "pid", "tid", "ts", "dur", "correlation")
    for cat, name, pid, tid, ts, dur, correlation in zip(*(events[name].tolist() for name in columns), strict=True):
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": _number(tid)}
        event |= {"ts": (ts - start) / 1_000, "dur": dur / 1_000}
        yield event if correlation < 0 else {**event, "args": {"correlation": correlation}}


def _arrows(events: pd.DataFrame, start: int) -> Iterator[dict[str, Any]]:
    """From each launch to the first work that it caused, as Perfetto draws it."""
    linked = events[events["correlation"] >= 0]
    is_call = (linked["cat"] == "cuda_runtime").to_numpy()
    of_calls, of_works = (_first_places(linked[rows]) for rows in (is_call, ~is_call))
    for correlation in of_calls:
        if correlation not in of_works:
            continue
        for phase, places in (("s", of_calls), ("f", of_works)):
            pid, tid, ts = places[correlation]
            place = {"pid": pid, "tid": _number(tid), "ts": (ts - start) / 1_000}
            yield {"ph": phase, "id": correlation, "cat": "ac2g", "name": "ac2g", "bp": "e", **place}


def _first_places(events: pd.DataFrame) -> dict[int, tuple[int, Any, int]]:
    """Process, thread and start of the first event of each correlation, in order of time."""
    places: dict[int, tuple[int, Any, int]] = {}
    columns = (events[name].tolist() for name in ("correlation", "pid", "tid", "ts"))
    for correlation, pid, tid, ts in zip(*columns, strict=True):
        places.setdefault(correlation, (pid, tid, ts))
    return places


def _number(tid: Any) -> int | str:
    """A thread's id as a number, which Perfetto needs, where it is one."""
    text = str(tid)
    return int(text) if text.isdecimal() else text
