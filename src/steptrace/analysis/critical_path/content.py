"""What of a trace its graph holds: the time of its steps, GPU work, waits, and when other threads worked for them."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.critical_path.dependencies import Dependencies
from steptrace.analysis.idle import KERNEL_WAIT_BELOW_NS
from steptrace.intervals import Ints, Spans
from steptrace.trace.columns import start_end, take
from steptrace.trace.model import Trace

_NO_TIMES = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Window:
    """The time looked at, `[start, end)`, the thread of its steps, and each step's start, end, end on the host, thread.

    `steps` is the number of steps, 0 for a trace without, which is taken as one.
    """

    steps: int
    thread: int
    begin: Ints
    finish: Ints
    host_finish: Ints
    threads: Ints

    @property
    def start(self) -> int:
        """Start of the first step."""
        return int(self.begin.min())

    @property
    def end(self) -> int:
        """End of the last step."""
        return int(self.finish.max())

    @property
    def host_end(self) -> int:
        """When the host was done with the last step."""
        return int(self.host_finish.max())

    def limit(self, thread: Ints) -> Ints:
        """Until when each thread takes part."""
        return np.where(thread == self.thread, self.host_end, self.end)


def host_tables(trace: Trace) -> list[pd.DataFrame]:
    """The tables of what happened on host threads."""
    return [trace.ops, trace.launches, trace.annotations, trace.frames]


def window_of(model: Dependencies) -> Window | None:
    """The steps of a trace; without any, the whole trace, seen from its busiest thread; None without host events."""
    steps = model.trace.steps
    if len(steps):
        begin, dur, host_dur, thread = steps[["ts", "dur", "host_dur", "thread"]].to_numpy().T
        return Window(len(steps), int(np.bincount(thread).argmax()), begin, begin + dur, begin + host_dur, thread)
    tables = host_tables(model.trace)
    thread = np.concatenate([table["thread"].to_numpy() for table in tables])
    if not len(thread):
        return None
    events = np.bincount(thread)
    launches = np.bincount(model.thread[model.thread >= 0], minlength=len(events))
    busiest = max(np.flatnonzero(events).tolist(), key=lambda thread: (launches[thread], events[thread]))
    ends = np.concatenate([start_end(table)[1] for table in tables])
    host_end = int(ends[thread == busiest].max())
    end = max(host_end, int(model.end.max(initial=0)))
    return Window(0, busiest, *(np.array([value]) for value in (0, end, host_end, busiest)))


@dataclass(frozen=True)
class Content:
    """Rows of `kernels`: `work`, all that can matter, of it what starts in the window, and of that what is placed.

    Placed is what the host is taken to have launched at its start, on `placed_thread`. `syncs` are rows of `syncs`;
    `bursts` are rows `(thread, start, end)`.
    """

    work: Ints
    starting: Ints
    placed: Ints
    placed_thread: Ints
    syncs: Ints
    bursts: Ints


def content_of(model: Dependencies, window: Window) -> Content:
    """What the graph of a trace holds."""
    work = _work(model, window)
    starting = work[model.start[work] >= window.start]
    placed = _placed_by_host(model, window, work, starting)
    placed_thread = np.where(model.thread[placed] >= 0, model.thread[placed], window.thread)
    syncs = _sync_rows(model, window, np.append(model.thread[work], placed_thread))
    return Content(work, starting, placed, placed_thread, syncs, _bursts(model, window))


def _work(model: Dependencies, window: Window) -> Ints:
    """The activities that can matter: launched by the time the host was done, and ended by the end of all."""
    ended = (model.end > window.start) & (model.end <= window.end)
    return np.flatnonzero(ended & (model.launched_ns < window.host_end))


def _placed_by_host(model: Dependencies, window: Window, work: Ints, rows: Ints) -> Ints:
    """Those of the starting activities that the host is taken to have launched at their start."""
    before = model.stream[rows]
    ended = take(model.end, before)
    follows = (before >= 0) & (model.start[rows] - ended < KERNEL_WAIT_BELOW_NS)
    follows &= (ended <= window.start) | np.isin(before, work)
    placed: Ints = rows[(model.launch[rows] < 0) & ~follows]
    return placed


def _sync_rows(model: Dependencies, window: Window, launching: Ints) -> Ints:
    """The synchronisations on threads that train or launch, in order of thread and time."""
    syncs = model.trace.syncs
    (begin, back), thread = start_end(syncs), syncs["thread"].to_numpy()
    used = model.training[thread] | (thread == window.thread) | np.isin(thread, launching)
    return np.flatnonzero(used & (back > window.start) & (begin < window.limit(thread)))


def _bursts(model: Dependencies, window: Window) -> Ints:
    """Rows `(thread, start, end)`: when another training thread worked for the steps' own."""
    found = []
    threads = [int(t) for t in np.flatnonzero(model.training) if t != window.thread]
    events = _spans(model.trace, window, [*threads, window.thread]) if threads else {}
    busy = {thread: intervals.union(events[thread]) for thread in threads if thread in events}
    edges = intervals.distinct(events[window.thread]) if busy and window.thread in events else _NO_TIMES
    for thread, spans in busy.items():
        gap = np.searchsorted(edges, spans[:, 0], side="right")
        inside = np.searchsorted(edges, spans[:, 1], side="left") <= gap
        _, first = np.unique(gap[inside], return_index=True)
        for burst in np.split(spans[inside], first[1:]):
            found.extend([(thread, burst[0, 0], burst[-1, 1])] if len(burst) else [])
    return np.array(found, dtype=np.int64).reshape(-1, 3)


def _spans(trace: Trace, window: Window, threads: list[int]) -> dict[int, Spans]:
    """The events of host threads that lie between the start of all and when the host was done, by thread."""
    of_thread, parts = [], []
    for table in host_tables(trace):
        (ts, end), thread = start_end(table), table["thread"].to_numpy()
        inside = np.isin(thread, threads) & (ts >= window.start) & (end <= window.host_end)
        inside &= ts < window.host_end
        of_thread.append(thread[inside])
        parts.append(intervals.spans(ts[inside], end[inside]))
    thread = np.concatenate(of_thread)
    order = np.argsort(thread, kind="stable")
    known, first = np.unique(thread[order], return_index=True)
    return dict(zip(known.tolist(), np.split(np.concatenate(parts)[order], first[1:]), strict=False))
