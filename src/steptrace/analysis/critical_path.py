"""The critical path of a step: the chain of waits that ends with the step.

It is followed backwards from the step's end: to the last event that the end had to wait for, from there to the last
event that this one had to wait for, and so on to the step's start. The parts between follow each other without a gap,
so their lengths add up to the step's exactly. `critical_path_waits` says what GPU work and syncs wait for.

The classes of the parts:

- `host`: a host thread running, in Python, operators or calls.
- `loader`: the step's thread waiting for the data loader.
- `sync`: a sync after the end of the work it waits for: its return, or all of it if the work had ended
  before. (The wait itself is on the path as that work.)
- `launch`: from the start of a launch to the start of its work, which nothing else delayed.
- `queue`: from the end of the work before to the start of the next, on a stream or across streams.
- `compute`, `comm`, `memory`: GPU work itself.

The share of a class is its part of the path, not the possible saving: without it other paths would become critical.

The instants of a trace's steps are one table of nodes, each with the node that it waited for. Nodes are starts and ends
of GPU activities, on each host thread its launches and both ends of its syncs and loader waits, and the ends of steps.
Of all nodes that a node had to wait for the last one counts. Of several at one instant, GPU work comes before launches,
and launches before the host.

A host thread continues after its previous instant. If a training thread (the autograd engine's) was busy while the
steps' own thread recorded nothing, it worked for that thread: its burst starts when the steps' thread hands over, and
the steps' thread continues after the burst. Any other thread runs independently.
"""

from typing import Annotated, Any, Final

import msgspec
import numpy as np
import pandas as pd

from steptrace import format as fmt
from steptrace import intervals
from steptrace.analysis.common.gaps import loader_spans
from steptrace.analysis.common.registry import part, table
from steptrace.analysis.critical_path_waits import Steps, Work, bursts_of, steps_of, work_of
from steptrace.documents.base import Document, field, reference
from steptrace.documents.program import ClassOfPath, CriticalPath
from steptrace.documents.table import frame_of, validate
from steptrace.errors import TraceError
from steptrace.intervals import Ints
from steptrace.limits import KERNEL_WAIT_BELOW_NS
from steptrace.trace.columns import Mask, map_names, references, row_numbers, start_end, take, text
from steptrace.trace.decode import LATEST_NS
from steptrace.trace.model import Trace, once

#: The classes of the time between a node and the one before it.
CLASSES: Final = ("host", "loader", "sync", "launch", "queue", "compute", "comm", "memory")
HOST, LOADER, SYNC, LAUNCH, QUEUE, COMPUTE, COMM, MEMORY = range(len(CLASSES))
#: The order of nodes at one instant: ends, the host, starts (and ends of empty work), ends of steps.
_ENDS, _HOST_NODE, _STARTS, _STEPS = range(4)


class Nodes:
    """The table: `time`, the node `before`, and `kind`, `thread` and `kernel` of the part between the two.

    `kind` is an index in `CLASSES`, `thread` and `kernel` rows of the trace's tables, and `before` a node, each -1 for
    none. `step_ends` are the nodes of the steps' ends. The node `before` always has a lower `rank`.
    """

    def __init__(self, trace: Trace, work: Work, steps: Steps) -> None:
        self._trace, self._of, self._steps = trace, work, steps
        self._choose()
        self._make()
        # In order of precedence at one instant: a later offer replaces an earlier one.
        self._chain_hosts()
        self._hand_over()
        self._start_work()
        self._wait_for_work()
        self._end_steps()

    def _choose(self) -> None:
        """Select the rows of `kernels` and `syncs` that count, and the bursts of other threads."""
        of, steps = self._of, self._steps
        ended = (of.end > steps.first) & (of.end <= int(steps.end.max()))
        self._work = np.flatnonzero(ended & (of.launched_ns < steps.last_on_host))
        self._starting = self._work[of.start[self._work] >= steps.first]
        # Work assumed to be launched at its start: without a launch, and not right after other work.
        before = of.stream[self._starting]
        end = take(of.end, before)
        follows = (before >= 0) & (of.start[self._starting] - end < KERNEL_WAIT_BELOW_NS)
        follows &= (end <= steps.first) | np.isin(before, self._work)
        self._placed = self._starting[(of.launched_ns[self._starting] < 0) & ~follows]
        self._placed_thread = np.where(of.thread[self._placed] >= 0, of.thread[self._placed], steps.thread)
        training = self._trace.threads["training"].to_numpy(dtype=bool)
        (begin, back), thread = start_end(self._trace.syncs), self._trace.syncs["thread"].to_numpy()
        used = training[thread] | (thread == steps.thread)
        used |= np.isin(thread, np.append(of.thread[self._work], self._placed_thread))
        self._syncs = np.flatnonzero(used & (back > steps.first) & (begin < steps.limit(thread)))
        self._bursts = bursts_of(self._trace, steps, [int(t) for t in np.flatnonzero(training) if t != steps.thread])

    def _make(self) -> None:
        """All nodes: instants of hosts first, then starts and ends of work, then ends of steps."""
        of, steps, rows = self._of, self._steps, self._starting
        self._length = int(steps.end.max()) - steps.first + 1
        if len(self._trace.threads) * self._length >= LATEST_NS:
            raise TraceError(
                f"{fmt.count(len(self._trace.threads))} threads over {fmt.duration(self._length)}",
                where=self._trace.path,
                expected="a recording of one process",
            )
        syncs = self._trace.syncs.iloc[self._syncs]
        begin, back = start_end(syncs)
        self._sync_thread = syncs["thread"].to_numpy()
        self._sync_end = np.minimum(back, steps.limit(self._sync_thread))
        self._returns = back <= self._sync_end
        launched = rows[of.launched_ns[rows] >= steps.first]
        self._placed_at = np.minimum(of.start[self._placed], steps.limit(self._placed_thread))
        self._done = np.minimum(steps.host_end, steps.limit(steps.threads))
        self._loader = loader_spans(self._trace)
        own = intervals.clip(self._loader, steps.first, steps.last_on_host).reshape(-1)
        own = np.concatenate([[steps.first, steps.last_on_host], own, self._bursts[:, 1]])
        points = [
            (np.full(len(own), steps.thread), own),
            (of.thread[launched], of.launched_ns[launched]),
            (self._placed_thread, self._placed_at),
            (self._sync_thread, np.maximum(begin, steps.first)),
            (self._sync_thread, self._sync_end),
            (self._bursts[:, 0], self._bursts[:, 1]),
            (self._bursts[:, 0], self._bursts[:, 2]),
            (steps.threads, steps.begin),
            (steps.threads, self._done),
        ]
        self._host = intervals.distinct(np.concatenate([self._key(thread, time) for thread, time in points]))
        self._thread, time = np.divmod(self._host, self._length)
        counts = (len(self._host), len(rows), len(self._work), len(steps.begin))
        self.time = np.concatenate([time + steps.first, of.start[rows], of.end[self._work], steps.end])
        self.step_ends = len(self.time) - counts[3] + np.arange(counts[3])
        phase = np.repeat([_HOST_NODE, _STARTS, _ENDS, _STEPS], counts)
        phase[counts[0] + counts[1] : -counts[3]][of.start[self._work] == of.end[self._work]] = _STARTS
        threads = np.where(self._thread == steps.thread, -1, self._thread)
        within = np.concatenate([2 * threads, 2 * rows, 2 * self._work + 1, np.arange(counts[3])])
        self.rank = np.empty(len(self.time), dtype=np.int64)
        self.rank[np.lexsort((within, phase, self.time))] = np.arange(len(self.time))
        self.before, self.kind, self.thread, self.kernel = np.full((4, len(self.time)), -1, dtype=np.int64)
        self._at = np.full(len(self.time), np.iinfo(np.int64).min)

    def _key(self, thread: Ints, time: Ints) -> Ints:
        result: Ints = thread * self._length + (time - self._steps.first)
        return result

    def _host_node(self, thread: Ints | int, time: Ints) -> Ints:
        """The node of an instant on a host thread, or the start of the first step for an earlier instant."""
        early, steps = time < self._steps.first, self._steps
        key = self._key(np.where(early, steps.thread, thread), np.where(early, steps.first, time))
        return np.searchsorted(self._host, key).astype(np.int64)

    def _start_node(self, rows: Ints) -> Ints:
        return (len(self._host) + np.searchsorted(self._starting, rows)).astype(np.int64)

    def _end_node(self, rows: Ints) -> Ints:
        """The node of each activity's end, or the start of the first step for an earlier end."""
        node = len(self._host) + len(self._starting) + np.searchsorted(self._work, rows)
        early = self._of.end[rows] <= self._steps.first
        return np.where(early, self._host_node(0, np.full(len(rows), self._steps.first - 1)), node)

    def _offer(
        self,
        target: Ints,
        source: Ints,
        at: Ints,
        kind: Ints | int,
        *,
        thread: Ints | int = -1,
        kernel: Ints | int = -1,
    ) -> None:
        """Let nodes wait for others: each keeps the last source, of several at one instant the one offered last.

        `at` is the source's own time, even before the first step. Sources without a lower rank are ignored: the host
        does not wait for work that begins, or is empty and ends, at the instant when it continues.
        """
        latest = np.lexsort((self.rank[source], at))
        latest = latest[(self.rank[source] < self.rank[target])[latest] & (at >= self._at[target])[latest]]
        target = target[latest]  # the last one of each target
        for column, values in ((self.before, source), (self._at, at), (self.kind, kind), (self.thread, thread)):
            column[target] = np.broadcast_to(values, len(at))[latest]
        self.kernel[target] = np.broadcast_to(kernel, len(at))[latest]

    def _chain_hosts(self) -> None:
        """Each host thread continues after its previous instant."""
        thread, time = self._thread, self.time
        after = np.flatnonzero(thread[1:] == thread[:-1]) + 1
        kind = np.full(len(thread), HOST, dtype=np.int64)
        own = after[thread[after] == self._steps.thread]
        kind[own[intervals.measure_within(self._loader, time[own - 1], time[own]) > 0]] = LOADER
        kind[after[self._in_sync(thread[after - 1], time[after - 1])]] = SYNC
        self._offer(after, after - 1, time[after - 1], kind[after], thread=thread[after])
        # A thread without a recorded cause runs independently from the first step's start.
        alone = np.flatnonzero(np.append(True, thread[1:] != thread[:-1]) & (thread != self._steps.thread))
        alone = np.setdiff1d(alone, self._host_node(self._bursts[:, 0], self._bursts[:, 1]))
        begun = np.full(len(alone), self._steps.first)
        self._offer(alone, self._host_node(self._steps.thread, begun), begun, HOST, thread=thread[alone])

    def _in_sync(self, thread: Ints, time: Ints) -> Mask:
        """Whether each host thread is in a sync at an instant."""
        begin, end = start_end(self._trace.syncs.iloc[self._syncs])
        order = np.lexsort((-end, begin, self._sync_thread))
        sync = intervals.enclosing(self._sync_thread[order], begin[order], end[order], thread, time)
        inside: Mask = sync >= 0
        return inside

    def _hand_over(self) -> None:
        """Threads that work for the steps' thread begin when it hands over, and it continues after them."""
        own_thread = self._steps.thread
        thread, begin, end = self._bursts.T
        entry = self._host_node(thread, begin)
        self._offer(entry, self._host_node(own_thread, begin), begin, HOST, thread=thread)
        own = np.flatnonzero(self._thread == own_thread)
        place = np.searchsorted(self.time[own], end, side="right")
        back = place < len(own)
        source = self._host_node(thread, end)[back]
        self._offer(own[place[back]], source, end[back], HOST, thread=own_thread)

    def _start_work(self) -> None:
        """GPU work starts after its launch and the work before it, and ends after its length."""
        of, rows, first = self._of, self._starting, self._steps.first
        launched = rows[of.launched_ns[rows] >= 0]
        for kernel, thread, at in (
            (launched, of.thread[launched], of.launched_ns[launched]),
            (self._placed, self._placed_thread, self._placed_at),
        ):
            source = self._host_node(thread, at)
            self._offer(self._start_node(kernel), source, at, LAUNCH, thread=thread, kernel=kernel)
        for before in (of.event, of.graph, of.stream):
            source = before[rows]
            usable = (source >= 0) & (np.isin(source, self._work) | (take(of.end, source) <= first))
            target, source = rows[usable], source[usable]
            self._offer(self._start_node(target), self._end_node(source), of.end[source], QUEUE, kernel=target)
        kind = self._kinds(self._work)
        began = of.start[self._work] < first
        start = np.where(began, self._host_node(0, np.full(len(began), first - 1)), self._start_node(self._work))
        self._offer(self._end_node(self._work), start, of.start[self._work], kind, kernel=self._work)

    def _kinds(self, rows: Ints) -> Ints:
        classes = {"compute": COMPUTE, "comm": COMM, "memory": MEMORY}
        kind: Ints = map_names(self._trace.kernels["kind"], classes.__getitem__, np.int64)[rows]
        return kind

    def _wait_for_work(self) -> None:
        """A sync returns after the work it waits for, or with it if the clocks show a later end of work."""
        usable = np.zeros(len(self._of.end), dtype=bool)
        usable[self._work] = True
        sync, kernel = self._of.waits(self._trace, usable).T
        both = np.isin(sync, self._syncs[self._returns]) & usable[kernel]
        sync, kernel = np.searchsorted(self._syncs, sync[both]), kernel[both]
        thread, back = self._sync_thread[sync], self._sync_end[sync]
        source, at, kind = self._end_node(kernel), self._of.end[kernel], np.full(len(sync), SYNC)
        running = (at > back) & np.isin(kernel, self._starting)
        source[running], at[running] = self._start_node(kernel[running]), back[running]
        kind[running] = self._kinds(kernel[running])
        self._offer(self._host_node(thread, back), source, at, kind, thread=thread, kernel=kernel)

    def _end_steps(self) -> None:
        """A step ends when both its thread and the work launched in it have finished."""
        steps, work = self._steps, self._work
        source = self._host_node(steps.threads, self._done)
        self._offer(self.step_ends, source, self._done, HOST, thread=steps.threads)
        # Work without a known launch belongs to the step in which it ran.
        launched = self._of.launched_ns[work] >= 0
        of_launch = row_numbers(self._trace.kernels["step"])[work] if len(self._trace.steps) else np.zeros_like(work)
        around = np.searchsorted(steps.begin, self._of.start[work], side="right") - 1
        step = np.where(launched, of_launch, around)
        inside = (step >= 0) & (self._of.end[work] <= steps.end[step])
        mine, step = work[inside], step[inside]
        self._offer(self.step_ends[step], self._end_node(mine), self._of.end[mine], QUEUE, kernel=mine)


class PathPart(Document, frozen=True):
    """One part of a step's critical path. A step's parts follow each other without a gap from its start to its end, so
    that their lengths add up to the step's exactly."""

    step: Annotated[int | None, reference("steps", "null where the trace has none and all of it counts.")]
    ts: Annotated[int, field("Start.")]
    dur: Annotated[int, field("Length.")]
    class_: Annotated[str, field("What the path is in: see `steptrace.analysis.critical_path`.")] = msgspec.field(
        name="class"
    )
    thread: Annotated[int | None, reference("threads", "of a part on the host.")]
    kernel: Annotated[int | None, reference("kernels", "the activity, or the one waited for or to start.")]


_ON_GPU = ("compute", "comm", "memory", "launch", "queue", "sync")


@table("critical_path", PathPart)
@once
def critical_paths(trace: Trace) -> pd.DataFrame:
    """The table `critical_path`; empty without host events. A trace without steps is taken as one."""
    work = work_of(trace)
    steps = steps_of(trace, work)
    if steps is None:
        return frame_of(PathPart)
    path = _walk(Nodes(trace, work, steps), steps)
    links = {name: references(path[name].to_numpy()) for name in ("thread", "kernel")}
    step = references(path["step"].to_numpy() if len(trace.steps) else np.full(len(path), -1))
    of = text(path["class"].to_numpy(dtype=np.int64), pd.Index(list(CLASSES), dtype=object))
    return validate(path.assign(step=step, **{"class": of}, **links), PathPart)


def _walk(nodes: Nodes, steps: Steps) -> pd.DataFrame:
    """The parts of each step's path without empty ones; neighbours of one kind on one thread are joined."""
    # Views give Python's numbers, as lists do; lists of all nodes would be the peak of memory.
    before, time = nodes.before.data, nodes.time.data
    walked: list[int] = []
    counts = []
    for node, begin in zip(nodes.step_ends.tolist(), steps.begin.tolist(), strict=True):
        path = []
        while time[node] > begin:
            path.append(node)
            node = before[node]
        walked += path[::-1]
        counts.append(len(path))
    row = np.array(walked, dtype=np.int64)
    step = np.repeat(np.arange(len(counts)), counts)
    start, end = np.maximum(nodes.time[nodes.before[row]], steps.begin[step]), nodes.time[row]
    long = end > start
    row, step, start, end = row[long], step[long], start[long], end[long]
    kind, thread, kernel = nodes.kind[row], nodes.thread[row], nodes.kernel[row]
    alike = (step[1:] == step[:-1]) & (kind[1:] == kind[:-1]) & (thread[1:] == thread[:-1])
    alike &= (kernel[1:] < 0) & (kernel[:-1] < 0)
    first = np.flatnonzero(np.append(True, ~alike)[: len(row)])
    last = np.append(first[1:], len(row)) - 1 if len(row) else first
    parts = {"step": step[first], "ts": start[first], "dur": end[last] - start[first]}
    return pd.DataFrame({**parts, "class": kind[first], "thread": thread[first], "kernel": kernel[first]})


@part("critical_path")
def critical_path(trace: Trace) -> CriticalPath | None:
    """The path's summary: means over the steps, per class and of the steps' length, and each class's share.

    Means of the parts still add up to the mean step. None without a path. Classes of GPU work are None without a GPU.
    """
    path, steps, gpu = critical_paths(trace), len(trace.steps) or 1, trace.device is not None
    if len(path) == 0:
        return None
    total, by_class = int(path["dur"].sum()), path.groupby("class", observed=False)["dur"].sum()
    classes = []
    for name in CLASSES:
        spent = int(by_class[name])
        figures: dict[str, Any] = {"path_ns": round(spent / steps), "share": spent / total}
        measured = gpu or name not in _ON_GPU
        classes.append(ClassOfPath(class_=name, **(figures if measured else dict.fromkeys(figures))))
    return CriticalPath(steps=steps, span_ns=round(total / steps), classes=tuple(classes))
