"""The program as a tree: Python frames, labels, operators and calls of each host thread, and the GPU work they caused.

An event's parent is the innermost event of any kind around it on its thread. Events that start and end together nest
as frame, label, operator, call, and within a kind as the profiler numbered them. Rounded times can overlap: an event is
then cut off at the end of its parent, so that self times are never negative, and a thread's add up to the time with any
event.

GPU work belongs to the call that launched it. Nothing here recurses: a subtree of any depth is a range of rows.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import union_categoricals

from steptrace.analysis.common.activity import launches_measured, outside_steps
from steptrace.analysis.common.registry import table, without_rows_of
from steptrace.compiled import compiled
from steptrace.documents.base import Document, field, key, reference
from steptrace.documents.table import frame_of, validate
from steptrace.intervals import Ints
from steptrace.trace.columns import Mask, Rows, counted, pick, references, row_numbers, take, text
from steptrace.trace.model import Trace, once
from steptrace.trace.source import SITE_COLUMNS, sites_of

#: The kinds of events in the order in which they nest where they start and end together, and their tables.
KINDS = {"frame": "frames", "label": "labels", "op": "ops", "call": "launches"}
FRAME, LABEL, OP, CALL = range(4)


class CallTreeRow(Document, frozen=True):
    """One event of a host thread in its place in the thread's call tree: a parent stands before its children, and the
    `size` rows from a row on are its subtree. Device times are sums over all streams."""

    kind: Annotated[str, key("", "`frame` (Python), `label`, `op` or `call` (into the GPU's runtime).")]
    row: Annotated[int, key("", "Row of the kind's own table (`frames`, `labels`, `ops`, `launches`).")]
    name: Annotated[str, field("Name as in that table.")]
    thread: Annotated[int, reference("threads")]
    parent: Annotated[int | None, field("Row of this table: the event around it.")]
    depth: Annotated[int, field("Number of events around it.")]
    size: Annotated[int, field("Number of events in its subtree, itself included.")]
    ts: Annotated[int, field("Start.")]
    host_ns: Annotated[int, field("Length, cut off where the event around it ends.")]
    host_self_ns: Annotated[int, field("Length without the events directly inside.")]
    kernels: Annotated[int | None, field("GPU activities launched inside; null where launches are unknown.")]
    device_ns: Annotated[int | None, field("Their lengths, summed; null where launches are unknown.")]
    device_self_ns: Annotated[
        int | None,
        field("The part that no operator, label or frame further in launched; null where launches are unknown."),
    ]
    forward: Annotated[int | None, field("Row of this table: the forward operator of a backward one.")]


class KernelOrigin(Document, frozen=True):
    """Where in the program each GPU activity comes from, in the order of `kernels`."""

    kernel: Annotated[int, reference("kernels", is_key=True)]
    node: Annotated[int | None, reference("call_tree", "the call that launched it.")]
    op: Annotated[str | None, field("Innermost operator around the launch.")]
    label: Annotated[str | None, field("Innermost `record_function` label.")]
    phase: Annotated[str | None, field("`backward`, or the outermost label if that is a part of the step.")]
    file: Annotated[str | None, field("File of the first frame that is neither PyTorch's nor steptrace's.")]
    line: Annotated[int | None, field("Line in `file`; for backward work the line of the forward operator.")]
    function: Annotated[str | None, field("Function that the line stands in.")]
    code: Annotated[str | None, field("Text of the line, where the file is known.")]


@table("call_tree", CallTreeRow, of_call_tree=True)
@once
def call_tree(trace: Trace) -> pd.DataFrame:
    """The call tree of every host thread: the table `call_tree`."""
    tables = [getattr(trace, name) for name in KINDS.values()]
    events = tree_of(tables)
    kind = events["kind"]
    parent = events["parent"]
    is_op = kind == OP
    of_op = row_numbers(trace.ops["forward"])
    forward = np.full(len(parent), -1, dtype=np.int32)
    forward[is_op] = take(np.flatnonzero(is_op), of_op)
    kernels, device, device_self = _gpu_work(trace, kind, parent, events["size"])
    table = pd.DataFrame(
        {
            "kind": text(kind, pd.Index(list(KINDS), dtype=object)),
            "row": events["row"],
            "name": _names(tables, kind),
            "thread": events["thread"],
            "parent": references(parent),
            "depth": events["depth"],
            "size": events["size"],
            "ts": events["ts"],
            "host_ns": events["host"],
            "host_self_ns": events["own"],
            "kernels": kernels,
            "device_ns": device,
            "device_self_ns": device_self,
            "forward": references(forward),
        },
        copy=False,
    )
    return frame_of(CallTreeRow, table)


#: The columns of `tree_of`.
_TREE = {
    "kind": np.int8,
    **dict.fromkeys(("row", "thread", "parent", "depth", "size"), np.int32),
    **dict.fromkeys(("ts", "host", "own"), np.int64),
}


def tree_of(tables: Sequence[pd.DataFrame]) -> dict[str, NDArray[Any]]:
    """The events of up to four tables, each in order of thread, start and the longer first, as one forest.

    Events of a table keep its order. `kind` is each event's table and `row` its row there, `parent` the row of its
    parent (-1 for none), `depth` the number of its ancestors and `size` the number of rows of its subtree, itself
    included. `host` is its length, cut off at the end of its parent; `own` is `host` less its children's.
    """
    recorded = [[table[name].to_numpy(dtype=np.int64) for name in ("thread", "ts", "dur")] for table in tables]
    tree = {name: np.empty(sum(map(len, tables)), dtype=dtype) for name, dtype in _TREE.items()}
    nothing = [[np.empty(0, dtype=np.int64)] * 3] * (4 - len(recorded))
    arrays = [np.ascontiguousarray(column) for columns in (*recorded, *nothing) for column in columns]
    compiled.call_tree(*arrays, *tree.values())
    return tree


def sum_subtrees(rows: Ints, values: Ints, size: Rows) -> Ints:
    """The sum of values over each row's subtree; a row can have none or several."""
    total = np.zeros(len(size) + 1, dtype=np.int64)
    np.add.at(total, rows + 1, values)
    np.cumsum(total, out=total)
    sums: Ints = total[np.arange(len(size), dtype=np.int32) + size]
    sums -= total[:-1]
    return sums


@once
def kernel_nodes(trace: Trace) -> Ints:
    """Row of `call_tree` of the call that launched each GPU activity, -1 without one in the trace."""
    return take(
        np.flatnonzero((call_tree(trace)["kind"].cat.codes == CALL).to_numpy()), row_numbers(trace.kernels["launch"])
    )


@table("kernel_origins", KernelOrigin)
@once
@without_rows_of("kernels", KernelOrigin)
def kernel_origins(trace: Trace) -> pd.DataFrame:
    """Operator, label and source line of each GPU activity: the table `kernel_origins`.

    The line is determined as for a sync: work of the backward pass belongs to the line of its forward
    operator. Without Python frames and recorded lines, file and line are null.
    """
    launch = row_numbers(trace.kernels["launch"])
    owners, place = np.unique(launch[launch >= 0], return_inverse=True)
    sites = sites_of(trace, trace.launches.iloc[owners], trace.lines)
    row = np.full(len(launch), -1, dtype=np.int64)
    row[launch >= 0] = place
    columns = {name: pick(sites[name].to_numpy(dtype=object), row) for name in SITE_COLUMNS}
    columns["line"] = counted(take(row_numbers(sites["line"]), row))
    node = references(kernel_nodes(trace))
    return validate(pd.DataFrame({"kernel": np.arange(len(launch)), "node": node, **columns}), KernelOrigin)


def device_time_by(trace: Trace, keys: list[str]) -> pd.DataFrame:
    """GPU activities by some columns of `kernel_origins`, the most time first; unknown values are a group too.

    Work left over from steps before the recorded ones is not counted.

    Returns the keys, `kernels` (count), `device_ns` (lengths, summed over all streams), `backward_ns` (its part in the
    backward pass) and `share` (of the sum over all groups, 0 to 1).
    """
    in_steps = ~outside_steps(trace)
    dur = trace.kernels["dur"].to_numpy()[in_steps]
    origins = kernel_origins(trace)[in_steps]
    backward = origins["phase"].to_numpy(dtype=object) == "backward"
    work = origins[keys].assign(kernels=1, device_ns=dur, backward_ns=np.where(backward, dur, 0))
    table = work.groupby(keys, dropna=False, sort=True).sum().reset_index()
    table["share"] = table["device_ns"] / max(int(dur.sum()), 1)
    return table.sort_values("device_ns", ascending=False, kind="stable").reset_index(drop=True)


def inside_same(key: Rows, size: Rows) -> Mask:
    """Whether each row of a tree lies in the subtree of another with the same key, a small number."""
    inside = np.empty(len(key), dtype=np.int8)
    arrays = (np.ascontiguousarray(column, dtype=np.int32) for column in (key, size))
    compiled.inside_same(*arrays, inside, int(key.max(initial=-1)) + 1)
    return inside.view(np.bool_)


def _names(tables: Sequence[pd.DataFrame], kind: NDArray[np.int8]) -> Any:
    """The names of the events of some tables in the order of their tree, as one categorical."""
    parts = [table["name"].astype("category") for table in tables]
    names = union_categoricals([part.iloc[:0] for part in parts]).categories
    codes = np.empty(len(kind), dtype=np.min_scalar_type(-len(names) - 1))
    for number, part in enumerate(parts):
        place = names.get_indexer(part.cat.categories)
        codes[kind == number] = place[part.cat.codes.to_numpy()] if len(place) else -1
    return pd.Categorical.from_codes(codes, categories=names)


def _gpu_work(trace: Trace, kind: NDArray[np.int8], parent: Rows, size: Rows) -> tuple[Any, ...]:
    """Per event: GPU activities launched in it, their time, and the part that no inner event launched."""
    if not launches_measured(trace):
        nothing = references(np.full(len(kind), -1, dtype=np.int32))
        return nothing, nothing, nothing
    is_call = kind == CALL
    node = take(np.flatnonzero(is_call), row_numbers(trace.kernels["launch"]))
    linked = np.flatnonzero(node >= 0)
    node = node[linked]
    time = trace.kernels["dur"].to_numpy()[linked]
    # A call's time counts as self time of the operator, label or frame right around it, too.
    self_time = np.zeros(len(kind), dtype=np.int64)
    np.add.at(self_time, node, time)
    owner = parent[node]
    while (inner := (owner >= 0) & is_call[owner]).any():
        owner[inner] = parent[owner[inner]]
    np.add.at(self_time, owner[owner >= 0], time[owner >= 0])
    number = sum_subtrees(node, np.ones(len(node), dtype=np.int64), size).astype(np.int32)
    nothing_missing = np.zeros(len(kind), dtype=bool)
    return tuple(
        pd.arrays.IntegerArray(v, nothing_missing) for v in (number, sum_subtrees(node, time, size), self_time)
    )
