"""One step as a graph of instants: what happened on host threads and streams, and what each instant had to wait for.

Nodes are instants: starts and ends of GPU activities, and on each host thread its launches, both ends of its
synchronisations and loader waits. An edge says that its target could not happen before its source plus `weight`.

Of the edges into a node one is *binding*: the one whose source happened last. It explains the node's time, so its
weight is the whole time between them. Any other edge's weight is what it needs at the least: nothing, or for a launch
and for a change from one activity of a stream to the next what such a thing typically takes. Hence the longest path to
any node is as long as the time that passed until then, and the longest path to the end is the step's length exactly.

The host's part: a thread goes on after its previous instant. If a training thread (the autograd engine's) was busy
while the step's own thread began and ended nothing, it was working for it: its burst starts when the step's thread
hands over, and the step's thread goes on after the burst. Any other thread runs by itself.

`steptrace.analysis.critical_path.build` makes it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from steptrace import intervals
from steptrace.analysis.critical_path.dependencies import Dependencies, dependencies
from steptrace.analysis.idle.measure import loader_spans
from steptrace.intervals import Ints, Spans
from steptrace.trace.columns import Mask, take
from steptrace.trace.model import Trace

#: What an edge, and so a part of a path, is: see `steptrace.analysis.critical_path.measure`.
CLASSES = ("host", "loader", "sync", "launch", "queue", "compute", "comm", "memory")
HOST, LOADER, SYNC, LAUNCH, QUEUE, COMPUTE, COMM, MEMORY = range(len(CLASSES))


@dataclass(frozen=True)
class StepGraph:
    """The graph of one step. Nodes are in an order in which every edge leads forward; the first is the step's start.

    `time` is when each node happened, ns. Edges are in the order of their targets: `source`, `target` (nodes),
    `weight` (ns), `kind` (place in `CLASSES`), `thread` (row of `threads`) or `kernel` (row of `kernels`) they are
    about, -1 for none, and `wait`, whether the host waits for work. `binding` is each node's binding edge, -1 for the
    first. `step` is a row of `steps`, None for a trace without steps.
    """

    step: int | None
    time: Ints
    source: Ints
    target: Ints
    weight: Ints
    kind: Ints
    thread: Ints
    kernel: Ints
    wait: Mask
    binding: Ints

    @property
    def span_ns(self) -> int:
        """Length of the step."""
        return int(self.time[-1] - self.time[0])

    def longest(self, weight: Ints | None = None, *, without: Mask | None = None) -> int:
        """Length of the longest path from start to end, ns, with other weights, or without some of the edges."""
        kept = slice(None) if without is None else ~without
        weights = self.weight if weight is None else weight
        reached = [0] * len(self.time)
        edges = (values[kept].tolist() for values in (self.source, self.target, weights))
        for source, target, ns in zip(*edges, strict=True):
            reached[target] = max(reached[target], reached[source] + ns)
        return reached[-1]


@dataclass(frozen=True)
class Window:
    """The step looked at: `[start, end)`, its own thread, when that was done, and until when launches belong to it."""

    step: int | None
    start: int
    end: int
    host_end: int
    launch_end: int
    thread: int


@dataclass(frozen=True)
class Model:
    """What all graphs of a trace share. Of each GPU activity start, end, place in `CLASSES` and launching thread."""

    trace: Trace
    of: Dependencies
    start: Ints
    end: Ints
    kind: Ints
    thread: Ints
    loader: Spans
    training: Mask
    activity: dict[int, Spans]  # each host thread's events in order of their start


def model_of(trace: Trace) -> Model:
    """What the graphs of a trace share."""
    kernels, of = trace.kernels, dependencies(trace)
    classes = {"compute": COMPUTE, "comm": COMM, "memory": MEMORY}
    start = kernels["ts"].to_numpy()
    return Model(
        trace=trace,
        of=of,
        start=start,
        end=start + kernels["dur"].to_numpy(),
        kind=np.array([classes[kind] for kind in kernels["kind"].to_numpy(dtype=object)], dtype=np.int64),
        thread=take(trace.launches["thread"].to_numpy(), np.maximum(of.launch, of.late_launch)),
        loader=loader_spans(trace),
        training=trace.threads["training"].to_numpy(dtype=bool),
        activity=_host_activity(trace),
    )


def _host_activity(trace: Trace) -> dict[int, Spans]:
    tables = [trace.ops, trace.launches, trace.annotations, trace.frames]
    thread, ts, dur = (np.concatenate([t[c].to_numpy(dtype=np.int64) for t in tables]) for c in ("thread", "ts", "dur"))
    order = np.lexsort((ts, thread))
    every = intervals.spans(ts[order], ts[order] + dur[order])
    used, first = np.unique(thread[order], return_index=True)
    # The part before the first cut is empty; without any event there is no cut and nothing else.
    return {int(t): part for t, part in zip(used, np.split(every, first)[1:], strict=True)}


def windows_of(model: Model) -> Iterator[Window]:
    """The steps of a trace; without any, the whole trace, seen from its busiest thread."""
    steps = model.trace.steps
    for step, (ts, dur, host_dur, thread) in enumerate(steps[["ts", "dur", "host_dur", "thread"]].to_numpy().tolist()):
        yield Window(step, ts, ts + dur, ts + host_dur, ts + host_dur, thread)
    if len(steps) == 0 and model.activity:
        launches = np.bincount(model.thread[model.thread >= 0], minlength=len(model.training))
        busiest = max(model.activity, key=lambda thread: (launches[thread], len(model.activity[thread])))
        host_end = int(model.activity[busiest][:, 1].max())
        end = max(host_end, int(model.end.max(initial=0)))
        yield Window(None, 0, end, host_end, end, busiest)
