"""All steps of a trace as one graph of instants: what happened on host threads and streams, and what each waited for.

Nodes are instants: starts and ends of GPU activities, on each host thread its launches and both ends of its
synchronisations and loader waits, and starts and ends of steps. An edge says that its target could not happen before
its source plus `weight`.

Of the edges into a node one is *binding*: the one whose source happened last. It explains the node's time, so its
weight is the whole time between them. Any other edge's weight is what it needs at the least: nothing, or for a launch
and for a change from one activity of a stream to the next what such a thing typically takes. Hence the longest path to
any node is as long as the time that passed until then, and the longest path to the end is as long as all steps exactly.

One graph holds all steps, since what a host gains in one step it can use in the next: it runs ahead of the GPU.

The host's part: a thread goes on after its previous instant. If a training thread (the autograd engine's) was busy
while the steps' own thread began and ended nothing, it was working for it: its burst starts when the steps' thread
hands over, and the steps' thread goes on after the burst. Any other thread runs by itself.

`steptrace.analysis.critical_path.build` makes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from steptrace.compiled import compiled
from steptrace.intervals import Ints
from steptrace.trace.columns import Mask, Rows
from steptrace.trace.kinds import GrowingColumn

#: What an edge, and so a part of a path, is: see `steptrace.analysis.critical_path.measure`.
CLASSES = ("host", "loader", "sync", "launch", "queue", "compute", "comm", "memory")
HOST, LOADER, SYNC, LAUNCH, QUEUE, COMPUTE, COMM, MEMORY = range(len(CLASSES))


@dataclass(frozen=True)
class Graph:
    """The graph of a trace. Nodes are in an order in which every edge leads forward; the first is the start of all.

    `time` is when each node happened, ns. Edges are in the order of their targets: `source`, `target` (nodes),
    `weight` (ns), `kind` (place in `CLASSES`), `thread` (row of `threads`) or `kernel` (row of `kernels`) they are
    about, -1 for none, and `wait`, whether the host waits for work.
    `kept` is what remains of an edge that is removed: the host's own time between the two calls of a synchronisation.
    `binding` is each node's binding edge, -1 for the first. `begin` and `end` are each step's start and the node of its
    end; a trace without steps is taken as one.
    """

    begin: Ints
    end: Rows
    time: Ints
    source: Rows
    target: Rows
    weight: Ints
    kept: Ints
    kind: NDArray[np.int8]
    thread: Rows
    kernel: Rows
    wait: Mask
    binding: Rows

    @property
    def span_ns(self) -> int:
        """Length of all steps together."""
        return int(self.time[-1] - self.time[0])

    def left_without(self, removed: Mask, *, waits: bool = False) -> int:
        """Length of all steps, ns, if these edges took no time but what is kept; with `waits` they hold up no host."""
        lasting = ~(removed & self.wait & waits)
        weight = np.where(removed, self.kept, self.weight)
        latest = np.zeros(len(self.time), dtype=np.int64)
        edges = [self.source, self.target, weight]
        compiled.longest_paths(*(edges if lasting.all() else [column[lasting] for column in edges]), latest)
        return int(latest[-1])


#: The columns of edges. `at` is when the source really happened, be it before the first step.
COLUMNS: dict[str, DTypeLike] = {
    **dict.fromkeys(("source", "target", "thread", "kernel"), np.int32),
    **dict.fromkeys(("at", "least", "kept"), np.int64),
    **dict.fromkeys(("kind", "priority", "wait"), np.int8),
}
_DEFAULTS = {"least": 0, "thread": -1, "kernel": -1, "kept": 0, "wait": 0, "kind": HOST}


class Edges:
    """Edges as they are found."""

    def __init__(self) -> None:
        self._columns = {name: GrowingColumn(dtype) for name, dtype in COLUMNS.items()}

    def add(self, source: Ints, target: Ints, at: Ints, **about: Ints | int) -> None:
        """Add edges; of what is not given stand the defaults."""
        columns: dict[str, Ints | int] = {**_DEFAULTS, **about, "source": source, "target": target, "at": at}
        shape = np.broadcast_shapes(*(np.shape(values) for values in columns.values()))
        for name, values in columns.items():
            self._columns[name].append(np.broadcast_to(values, shape))

    def columns(self) -> dict[str, NDArray[Any]]:
        """All edges, column by column."""
        return {name: column.array() for name, column in self._columns.items()}


def edge_order(edges: Mapping[str, NDArray[Any]], nodes: int) -> Rows:
    """The order of edges by target, of each target's the binding one last."""
    source, target, at, priority = (edges[name] for name in ("source", "target", "at", "priority"))
    order = np.empty(len(target), dtype=np.int32)
    compiled.order_edges(source, target, at, priority, order, nodes)
    return order
