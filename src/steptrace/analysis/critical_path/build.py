"""Builds the graph of a trace: first its instants, then what each of them had to wait for."""

import numpy as np

from steptrace import intervals
from steptrace.analysis.critical_path.content import Window, content_of, window_of
from steptrace.analysis.critical_path.dependencies import Dependencies, dependencies
from steptrace.analysis.critical_path.graph import COLUMNS, HOST, LAUNCH, LOADER, QUEUE, SYNC, Edges, Graph, edge_order
from steptrace.intervals import Ints
from steptrace.trace.columns import row_numbers, start_end, take
from steptrace.trace.model import Trace

#: Of sources that happened at one instant the later in this list is binding: GPU work before launches before the host.
_CHAIN, _HANDOVER, _LAUNCHED, _EVENT, _GRAPH, _STREAM = range(6)
#: In which order nodes of one instant stand: ends, the host, starts (and ends without length), ends of steps, the end.
_ENDS, _HOST_NODE, _STARTS, _STEPS, _LAST = range(5)


def graph_of(trace: Trace) -> Graph | None:
    """The graph of all steps of a trace, or of the whole trace if it has no steps; None without host events."""
    model = dependencies(trace)
    window = window_of(model)
    return None if window is None else _Builder(model, window).build()


class _Builder:
    """Builds a graph: first the nodes, then the edges between them."""

    def __init__(self, model: Dependencies, window: Window) -> None:
        self.model, self.window = model, window
        self.edges = Edges()
        self.of = content_of(model, window)
        self._make_nodes()

    def build(self) -> Graph:
        """The finished graph."""
        self._chain_hosts()
        self._wait_for_work()
        self._run_work()
        self._end()
        edges = self.edges.columns()
        del self.edges
        rank = np.empty(len(self.time), dtype=np.int32)
        rank[self.order] = np.arange(len(rank))
        time = self.time[self.order]
        for name in ("source", "target"):
            edges[name] = rank[edges[name]]
        # The host waits for no work that begins, or without length ends, in the very instant in which it goes on.
        forward = edges["source"] < edges["target"]
        edges = {name: edges.pop(name)[forward] for name in COLUMNS}
        order = edge_order(edges, len(time))
        del edges["at"], edges["priority"]
        edges = {name: edges.pop(name)[order] for name in list(edges)}
        source, target = edges["source"], edges["target"]
        last = np.append(target[1:] != target[:-1], True)
        binding = np.full(len(time), -1, dtype=np.int32)
        binding[target[last]] = np.flatnonzero(last)
        between = time[target] - time[source]
        weight = np.where(last, between, np.minimum(between, edges.pop("least")))
        return Graph(
            begin=self.window.begin,
            end=rank[self._step_end + np.arange(len(self.window.begin))],
            time=time,
            source=source,
            target=target,
            weight=weight,
            kept=np.minimum(edges.pop("kept"), between),
            binding=binding,
            wait=edges["wait"].view(np.bool_),
            **{name: edges[name] for name in ("kind", "thread", "kernel")},
        )

    def _make_nodes(self) -> None:
        """All nodes, host instants first: `time`, and `order`, the order in which edges lead forward."""
        model, window, rows = self.model, self.window, self.of.starting
        self._length = window.end - window.start + 1
        syncs = model.trace.syncs.iloc[self.of.syncs]
        thread = syncs["thread"].to_numpy()
        begin, back = start_end(syncs)
        begin = np.maximum(begin, window.start)
        self.sync_end = np.minimum(back, self.window.limit(thread))
        self.returns = back <= self.window.limit(thread)
        launched = rows[model.launched_ns[rows] >= window.start]
        self.placed_at = np.minimum(model.start[self.of.placed], self.window.limit(self.of.placed_thread))
        own = intervals.clip(model.loader, window.start, window.host_end).reshape(-1)
        own = np.concatenate([[window.start, window.host_end], own, self.of.bursts[:, 1]])
        points = [
            (np.full(len(own), window.thread), own),
            (model.thread[launched], model.launched_ns[launched]),
            (self.of.placed_thread, self.placed_at),
            (thread, begin),
            (thread, self.sync_end),
            (self.of.bursts[:, 0], self.of.bursts[:, 1]),
            (self.of.bursts[:, 0], self.of.bursts[:, 2]),
        ]
        points += [
            (window.threads, window.begin),
            (window.threads, np.minimum(window.host_finish, self.window.limit(window.threads))),
        ]
        self.host = intervals.distinct(np.concatenate([self._key(threads, times) for threads, times in points]))
        self.host_thread, self.host_time = np.divmod(self.host, self._length)
        self.host_time += window.start
        hosts, starts, ends, steps = len(self.host), len(rows), len(self.of.work), len(window.begin)
        self._step_end = hosts + starts + ends
        self.time = np.concatenate(
            [self.host_time, model.start[rows], model.end[self.of.work], window.finish, [window.end]]
        )
        brief = model.start[self.of.work] == model.end[self.of.work]
        phase = np.repeat([_HOST_NODE, _STARTS, _ENDS, _STEPS, _LAST], [hosts, starts, ends, steps, 1])
        phase[hosts + starts : self._step_end][brief] = _STARTS
        other = np.where(self.host_thread == window.thread, -1, self.host_thread)
        within = np.concatenate([2 * other, 2 * rows, 2 * self.of.work + 1, np.arange(steps), [0]])
        self.order = np.lexsort((within, phase, self.time))

    def _key(self, thread: Ints, time: Ints) -> Ints:
        result: Ints = thread * self._length + (time - self.window.start)
        return result

    def _host_node(self, thread: Ints | int, time: Ints) -> Ints:
        """The node of an instant on a host thread; before the first step it is that step's start."""
        wanted = self._key(np.asarray(thread), time)
        start = np.searchsorted(self.host, self._key(np.array(self.window.thread), np.array(self.window.start)))
        return np.where(time < self.window.start, start, np.searchsorted(self.host, wanted)).astype(np.int64)

    def _start_node(self, rows: Ints) -> Ints:
        return (len(self.host) + np.searchsorted(self.of.starting, rows)).astype(np.int64)

    def _end_node(self, rows: Ints) -> Ints:
        """The node of each activity's end; before the first step it is that step's start."""
        node = len(self.host) + len(self.of.starting) + np.searchsorted(self.of.work, rows)
        early = self.model.end[rows] <= self.window.start
        return np.where(early, self._host_node(self.window.thread, np.array([self.window.start - 1])), node)

    def _chain_hosts(self) -> None:
        """Each host thread goes on after its previous instant, and threads that work for the steps' hand over."""
        thread, time = self.host_thread, self.host_time
        node = np.arange(len(time))
        after = np.flatnonzero(thread[1:] == thread[:-1]) + 1
        kind = np.full(len(node), HOST, dtype=np.int64)
        own = after[thread[after] == self.window.thread]
        kind[own[intervals.measure_within(self.model.loader, time[own - 1], time[own]) > 0]] = LOADER
        sync = self._sync_around(thread[after - 1], time[after - 1])
        kind[after[sync >= 0]] = SYNC
        table = self.model.trace.syncs
        back, apart = table["ts"] + table["dur"], table["dur"] - table["blocked_ns"]
        kept = np.where(time[after] == take(back.to_numpy(), sync), take(apart.to_numpy(), sync), 0)
        about: dict[str, Ints | int] = {"kind": kind[after], "thread": thread[after], "priority": _CHAIN}
        about["kept"] = np.where(sync >= 0, kept, 0)
        self.edges.add(after - 1, after, time[after - 1], **about)
        burst_thread, begin, end = self.of.bursts.T
        own_node = np.flatnonzero(thread == self.window.thread)
        entry = self._host_node(burst_thread, begin)
        self.edges.add(
            self._host_node(self.window.thread, begin), entry, begin, priority=_HANDOVER, thread=burst_thread
        )
        place = np.searchsorted(time[own_node], end, side="right")
        back = place < len(own_node)
        self.edges.add(
            self._host_node(burst_thread, end)[back],
            own_node[place[back]],
            end[back],
            priority=_HANDOVER,
            thread=self.window.thread,
        )
        # A thread that nothing is known to have started runs by itself from the first step's start.
        alone = np.setdiff1d(node[np.append(True, thread[1:] != thread[:-1])], entry)
        alone = alone[thread[alone] != self.window.thread]
        begun = np.full(len(alone), self.window.start)
        self.edges.add(self._host_node(self.window.thread, begun), alone, begun, priority=_CHAIN, thread=thread[alone])

    def _sync_around(self, thread: Ints, time: Ints) -> Ints:
        """The synchronisation that each host thread is in at an instant, row of `syncs`; -1 for none."""
        table = self.model.trace.syncs
        rows = self.of.syncs
        begin, back = table["ts"].to_numpy()[rows], (table["ts"] + table["dur"]).to_numpy()[rows]
        order = np.lexsort((-back, begin, table["thread"].to_numpy()[rows]))
        rows, begin, back = rows[order], begin[order], back[order]
        return take(rows, intervals.enclosing(table["thread"].to_numpy()[rows], begin, back, thread, time))

    def _wait_for_work(self) -> None:
        """A synchronisation returns after the work it waits for, or with it where its end is later by the clocks."""
        sync, kernel = self.model.waits.T
        known = np.isin(sync, self.of.syncs[self.returns]) & np.isin(kernel, self.of.work)
        sync, kernel = sync[known], kernel[known]
        thread = self.model.trace.syncs["thread"].to_numpy()[sync]
        back = self.sync_end[np.searchsorted(self.of.syncs, sync)]
        about = {"thread": thread, "kernel": kernel}
        source, at, kind = self._end_node(kernel), self.model.end[kernel], np.full(len(sync), SYNC)
        running = (at > back) & np.isin(kernel, self.of.starting)
        source[running], at[running] = self._start_node(kernel[running]), back[running]
        kind[running] = self.model.kind[kernel[running]]
        self.edges.add(source, self._host_node(thread, back), at, priority=_STREAM, wait=1, kind=kind, **about)

    def _run_work(self) -> None:
        """GPU work starts after its launch and the work before it, and runs as long as it ran."""
        model, rows = self.model, self.of.starting
        run: dict[str, Ints | int] = {"priority": 0, "kind": model.kind[rows], "kernel": rows}
        self.edges.add(self._start_node(rows), self._end_node(rows), model.start[rows], **run)
        begun = np.setdiff1d(self.of.work, rows)
        source = self._host_node(self.window.thread, np.full(len(begun), self.window.start))
        run = {"priority": 0, "kind": model.kind[begun], "kernel": begun}
        self.edges.add(source, self._end_node(begun), model.start[begun], **run)
        launched = rows[model.launch[rows] >= 0]
        for kernel, thread, at, least in (
            (launched, model.thread[launched], model.launched_ns[launched], model.launch_ns),
            (self.of.placed, self.of.placed_thread, self.placed_at, 0),
        ):
            about: dict[str, Ints | int] = {"kind": LAUNCH, "kernel": kernel, "thread": thread, "priority": _LAUNCHED}
            self.edges.add(self._host_node(thread, at), self._start_node(kernel), at, least=least, **about)
        for priority, before in ((_STREAM, model.stream), (_GRAPH, model.graph), (_EVENT, model.event)):
            source_row = before[rows]
            usable = source_row >= 0
            usable &= np.isin(source_row, self.of.work) | (take(model.end, source_row) <= self.window.start)
            target, source_row = rows[usable], source_row[usable]
            about = {"kind": QUEUE, "kernel": target, "priority": priority, "least": model.queue_ns}
            self.edges.add(self._end_node(source_row), self._start_node(target), model.end[source_row], **about)

    def _end(self) -> None:
        """A step ends once its thread is done and so is the work launched in it; all is over with the last of them."""
        window, model, work = self.window, self.model, self.of.work
        node = self._step_end + np.arange(len(window.begin))
        done = np.minimum(window.host_finish, window.limit(window.threads))
        self.edges.add(self._host_node(window.threads, done), node, done, priority=_CHAIN, thread=window.threads)
        of = row_numbers(model.trace.kernels["step"])[work] if window.steps else np.zeros(len(work), np.int64)
        linked = model.launch[work] >= 0
        # Work without a known launch counts for the step that it lies in.
        around = np.searchsorted(window.begin, model.start[work], side="right") - 1
        of = np.where(linked, of, around)
        inside = (of >= 0) & (model.end[work] <= window.finish[of])
        mine, of = work[inside], of[inside]
        self.edges.add(self._end_node(mine), node[of], model.end[mine], priority=_STREAM, kind=QUEUE, kernel=mine)
        self.edges.add(node, np.array([len(self.time) - 1]), window.finish, priority=_CHAIN, kind=QUEUE)
