"""The edges of a graph while it is built: columns that grow, and their order at the end."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from steptrace.analysis.critical_path.graph import HOST
from steptrace.compiled import compiled
from steptrace.intervals import Ints
from steptrace.trace.columns import Rows
from steptrace.trace.growing import GrowingColumn

#: The columns of edges. `at` is when the source really happened, be it before the first step.
COLUMNS: dict[str, DTypeLike] = {
    **dict.fromkeys(("source", "target", "thread", "kernel", "sync"), np.int32),
    **dict.fromkeys(("at", "least", "kept"), np.int64),
    **dict.fromkeys(("kind", "priority", "wait"), np.int8),
}
_DEFAULTS = {"least": 0, "thread": -1, "kernel": -1, "sync": -1, "kept": 0, "wait": 0, "kind": HOST}


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
    if compiled is None:
        return np.lexsort((source, priority, at, target))
    order = np.empty(len(target), dtype=np.int32)
    compiled.order_edges(source, target, at, priority, order, nodes)
    return order
