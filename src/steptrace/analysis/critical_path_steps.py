"""The steps that critical paths lead through, and the spans in which another training thread worked for the steps' own.

A trace without steps counts as one step, of its busiest thread.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.critical_path_waits import GpuWork
from steptrace.intervals import Ints, Spans
from steptrace.trace.columns import start_end
from steptrace.trace.model import Trace


@dataclass(frozen=True)
class Steps:
    """Each step's start, end, end on the host and thread, and the thread of most steps.

    A trace without steps counts as one step of its busiest thread.
    """

    thread: int
    begin: Ints
    end: Ints
    host_end: Ints
    threads: Ints

    @property
    def first(self) -> int:
        """Start of the first step."""
        return int(self.begin.min())

    @property
    def last_on_host(self) -> int:
        """End of the last step on the host."""
        return int(self.host_end.max())

    def limit(self, thread: Ints) -> Ints:
        """The time up to which each thread counts."""
        return np.where(thread == self.thread, self.last_on_host, int(self.end.max()))


def steps_of(trace: Trace, work: GpuWork) -> Steps | None:
    """The steps of a trace; None without host events."""
    if len(trace.steps):
        begin, dur, host_dur, thread = trace.steps[["ts", "dur", "host_dur", "thread"]].to_numpy().T
        return Steps(int(np.bincount(thread).argmax()), begin, begin + dur, begin + host_dur, thread)
    thread = np.concatenate([table["thread"].to_numpy() for table in _host_tables(trace)])
    if not len(thread):
        return None
    events = np.bincount(thread)
    launches = np.bincount(work.thread[work.thread >= 0], minlength=len(events))
    busiest = max(np.flatnonzero(events).tolist(), key=lambda thread: (launches[thread], events[thread]))
    ends = np.concatenate([start_end(table)[1] for table in _host_tables(trace)])
    host_end = int(ends[thread == busiest].max())
    end = max(host_end, int(work.end.max(initial=0)))
    return Steps(busiest, *(np.array([value]) for value in (0, end, host_end, busiest)))


def _host_tables(trace: Trace) -> list[pd.DataFrame]:
    return [trace.ops, trace.launches, trace.labels, trace.frames]


def bursts_of(trace: Trace, steps: Steps, threads: list[int]) -> Ints:
    """Rows `(thread, start, end)`: spans in which another training thread worked for the steps' own."""
    bursts: list[tuple[int, int, int]] = []
    events = _spans(trace, steps, threads) if threads else {}
    busy = {thread: intervals.union(events.pop(thread)) for thread in threads if thread in events}
    # The other threads' events are gone by now: those of all threads at once would be the peak of memory.
    of_steps = _spans(trace, steps, [steps.thread]).get(steps.thread, intervals.empty()) if busy else intervals.empty()
    edges = intervals.distinct(of_steps)
    for thread, spans in busy.items():
        gap = np.searchsorted(edges, spans[:, 0], side="right")
        inside = np.searchsorted(edges, spans[:, 1], side="left") <= gap
        _, first = np.unique(gap[inside], return_index=True)
        for burst in np.split(spans[inside], first[1:]):
            bursts.extend([(thread, burst[0, 0], burst[-1, 1])] if len(burst) else [])
    return np.array(bursts, dtype=np.int64).reshape(-1, 3)


def _spans(trace: Trace, steps: Steps, threads: list[int]) -> dict[int, Spans]:
    """The events of host threads between the start of the first step and the host's end of the last, by thread."""
    of_thread = []
    parts = []
    for table in _host_tables(trace):
        ts, end = start_end(table)
        thread = table["thread"].to_numpy()
        inside = np.isin(thread, threads) & (ts >= steps.first) & (end <= steps.last_on_host)
        inside &= ts < steps.last_on_host
        of_thread.append(thread[inside])
        parts.append(intervals.spans(ts[inside], end[inside]))
    thread = np.concatenate(of_thread)
    spans = np.concatenate(parts)
    of_thread.clear()
    parts.clear()
    if len(threads) > 1:
        order = np.argsort(thread, kind="stable")
        thread = thread[order]
        spans = spans[order]
    used, first = np.unique(thread, return_index=True)
    return dict(zip(used.tolist(), np.split(spans, first[1:]), strict=False))
