"""The program as a tree: Python frames, labels, operators and calls of each host thread, and the GPU work they caused.

An event's parent is the innermost event of any kind around it on its thread. Events that start and end together nest
as frame, label, operator, call, and within a kind as the profiler numbered them. Recorded times overlap by a rounding
here and there: an event is then cut off where the one around it ends, so that self times are never negative and a
thread's add up to the time it had any event at all.

GPU work hangs on the call that launched it. Nothing here recurses: a stack of any depth is a range of rows.
"""

from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

from steptrace import intervals
from steptrace.analysis.common import tables_paths as schema
from steptrace.compiled import compiled
from steptrace.intervals import Ints
from steptrace.schema import validate
from steptrace.trace.columns import Mask, nearest, pick, references, row_numbers, take, text
from steptrace.trace.model import Trace
from steptrace.trace.source import SITE_COLUMNS, SourceLines, sites_of

#: The kinds of events in the order in which they nest where they start and end together, and their tables.
KINDS = {"frame": "frames", "annotation": "annotations", "op": "ops", "call": "launches"}
FRAME, ANNOTATION, OP, CALL = range(4)


def call_tree(trace: Trace) -> pd.DataFrame:
    """The call tree of every host thread: the table `call_tree`."""
    events = _events(trace)
    parent, end = nest(events["thread"], events["ts"], events["end"])
    host = end - events["ts"]
    depth = depths(parent)
    size = subtree_ends(depth) - np.arange(len(parent))
    inside = parent >= 0
    children = np.zeros(len(parent), dtype=np.int64)
    np.add.at(children, parent[inside], host[inside])
    forward = np.full(len(parent), -1, dtype=np.int64)
    is_op = events["kind"] == OP
    place = np.empty(len(trace.ops), dtype=np.int64)
    place[events["row"][is_op]] = np.flatnonzero(is_op)
    of_op = row_numbers(trace.ops["forward"])[events["row"][is_op]]
    forward[is_op] = np.where(of_op >= 0, place[of_op] if len(place) else -1, -1)
    kernels, device, own = _gpu_work(trace, events, parent, size)
    table = pd.DataFrame(
        {
            "kind": text(events["kind"], pd.Index(list(KINDS), dtype=object)),
            "row": events["row"],
            "name": _names(trace)[events["order"]],
            "thread": events["thread"],
            "parent": references(parent),
            "depth": depth,
            "size": size,
            "ts": events["ts"],
            "host_ns": host,
            "host_self_ns": host - children,
            "kernels": kernels,
            "device_ns": device,
            "device_self_ns": own,
            "forward": references(forward),
        },
        copy=False,
    )
    return validate(table, schema.CALL_TREE)


def nest(thread: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Parents and ends of events sorted by `(thread, start, -end)` after cutting each off where its parent ends.

    Returns the row of each event's parent (-1 for none) and the cut ends, int64. A subtree is a range of rows.
    """
    if compiled is not None:
        parent, end, open_ = np.empty(len(end), dtype=np.int64), end.copy(), np.empty(len(end), dtype=np.int64)
        compiled.nest(np.ascontiguousarray(thread), np.ascontiguousarray(start), end, parent, open_)
        return parent, end
    parent = intervals.nesting_parents(thread, start, end)
    crooked = (parent >= 0) & (end > end[parent])
    if not crooked.any():
        return parent, end
    # What a cut frees may hold later events: only a stack gets that right, and only where events touch a crooked one.
    parent, end = parent.copy(), end.copy()
    for low, high in _runs(thread, start, end, crooked):
        above, cut = _stack(start[low:high].tolist(), end[low:high].tolist())
        parent[low:high] = np.where(above >= 0, above + low, -1)
        end[low:high] = cut
    return parent, end


def _runs(thread: Ints, start: Ints, end: Ints, crooked: Mask) -> list[tuple[int, int]]:
    """The ranges of rows with a crooked event, between instants at which nothing is open on their thread."""
    # Each thread on a stretch of time of its own: then none reaches into the next one's.
    offset = thread * (int(end.max()) - int(start.min()) + 1)
    reach = np.maximum.accumulate(end + offset)
    heads = np.flatnonzero(np.append(True, (start + offset)[1:] >= reach[:-1]))
    hit = np.unique(np.searchsorted(heads, np.flatnonzero(crooked), side="right") - 1)
    after = np.append(heads, len(start))[hit + 1]
    return list(zip(heads[hit].tolist(), after.tolist(), strict=True))


def _stack(start: list[int], end: list[int]) -> tuple[Ints, Ints]:
    """`nest` for one run of events, event by event."""
    parent, cut, open_ = [-1] * len(start), end, [-1]
    for row, begin in enumerate(start):
        while open_[-1] >= 0 and cut[open_[-1]] <= begin:
            open_.pop()
        parent[row] = above = open_[-1]
        if above >= 0 and cut[row] > cut[above]:
            cut[row] = cut[above]
        open_.append(row)
    return np.array(parent, dtype=np.int64), np.array(cut, dtype=np.int64)


def depths(parent: Ints) -> Ints:
    """How many ancestors each row of a forest has. Jumps twice as far each round, so depth costs only its logarithm."""
    depth = (parent >= 0).astype(np.int64)
    jump = parent.copy()
    active = np.flatnonzero(jump >= 0)
    while len(active):
        target = jump[active]
        depth[active] += depth[target]
        jump[active] = jump[target]
        active = active[jump[active] >= 0]
    return depth


def subtree_ends(depth: Ints) -> Ints:
    """The row after each row's subtree, for rows in which every parent stands right before its subtree."""
    count = len(depth)
    after = np.arange(1, count + 1, dtype=np.int64)
    padded = np.append(depth, -1)
    active = np.arange(count, dtype=np.int64)
    while len(active):
        # What the next candidate skips is deeper than that candidate, which is deeper than this row.
        active = active[padded[after[active]] > depth[active]]
        after[active] = after[after[active]]
    return after


def sum_subtrees(values: Ints, size: Ints) -> Ints:
    """The sum of each row's subtree."""
    total = np.concatenate([[0], np.cumsum(values)])
    rows = np.arange(len(values))
    result: Ints = total[rows + size] - total[rows]
    return result


def kernel_nodes(trace: Trace, tree: pd.DataFrame) -> Ints:
    """Row of the tree of the call that launched each GPU activity, -1 where the trace holds none."""
    return _nodes_of_kernels(trace, (tree["kind"] == "call").to_numpy(), tree["row"].to_numpy())


def kernel_origins(trace: Trace, tree: pd.DataFrame, lines: SourceLines | None = None) -> pd.DataFrame:
    """Operator, label and source line of each GPU activity: the table `kernel_origins`.

    The line is found as that of a synchronisation: work of the backward pass belongs to the line of its forward
    operator. Without Python frames and recorded lines, file and line are null.
    """
    launch = row_numbers(trace.kernels["launch"])
    owners, place = np.unique(launch[launch >= 0], return_inverse=True)
    sites = sites_of(trace, trace.launches.iloc[owners], lines)
    row = np.full(len(launch), -1, dtype=np.int64)
    row[launch >= 0] = place
    found = {name: pick(sites[name].to_numpy(dtype=object), row) for name in SITE_COLUMNS}
    found["line"] = references(take(row_numbers(sites["line"]), row))
    node = references(kernel_nodes(trace, tree))
    return validate(pd.DataFrame({"kernel": np.arange(len(launch)), "node": node, **found}), schema.KERNEL_ORIGINS)


def device_time_by(trace: Trace, origins: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """GPU activities by some columns of `kernel_origins`, the most time first; unknown values are a group too.

    Returns the keys, `kernels` (count), `device_ns` (lengths, summed over all streams), `backward_ns` (what of it ran
    for the backward pass) and `share` (of the sum over all groups, 0 to 1).
    """
    dur = trace.kernels["dur"].to_numpy()
    backward = (origins["phase"] == "backward").fillna(value=False).to_numpy(dtype=bool)
    work = origins[keys].assign(kernels=1, device_ns=dur, backward_ns=np.where(backward, dur, 0))
    table = work.groupby(keys, dropna=False, sort=True).sum().reset_index()
    table["share"] = table["device_ns"] / max(int(dur.sum()), 1)
    return table.sort_values("device_ns", ascending=False, kind="stable").reset_index(drop=True)


def call_names(tree: pd.DataFrame) -> pd.DataFrame:
    """The tree by kind and name: the table `call_names`, the most device time first, then the most host time."""
    kind, name = tree["kind"].cat.codes.to_numpy(), tree["name"].cat.codes.to_numpy()
    outer = ~inside_same(kind.astype(np.int64) * (int(name.max(initial=0)) + 1) + name, tree["size"].to_numpy())
    counted = tree[["kind", "name", "host_self_ns", "device_self_ns"]].assign(calls=1)
    for column in ("host_ns", "kernels", "device_ns"):
        counted[column] = tree[column].where(outer, 0)
    table = counted.groupby(["kind", "name"], observed=True, sort=True).sum(min_count=1).reset_index()
    table = table.sort_values(["device_ns", "host_ns"], ascending=False, kind="stable").reset_index(drop=True)
    return validate(table[schema.CALL_NAMES.names], schema.CALL_NAMES)


def inside_same(key: Ints, size: Ints) -> Any:
    """Whether each row of a tree lies in the subtree of another with the same key (bool per row)."""
    order = np.argsort(key, kind="stable")
    ends = pd.Series((np.arange(len(key)) + size)[order])
    reach = ends.groupby(key[order]).cummax().groupby(key[order]).shift().fillna(-1).to_numpy(dtype=np.int64)
    inside = np.empty(len(key), dtype=bool)
    inside[order] = reach > order
    return inside


def _events(trace: Trace) -> dict[str, Any]:
    """All host events in the order of the tree, as columns; `order` is what sorted them from table after table."""
    tables = [getattr(trace, name) for name in KINDS.values()]
    kind = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    row = np.concatenate([np.arange(len(table)) for table in tables])
    thread, ts, dur = (np.concatenate([t[c].to_numpy(dtype=np.int64) for t in tables]) for c in ("thread", "ts", "dur"))
    order = np.lexsort((row, kind, -(ts + dur), ts, thread))
    columns = {"kind": kind, "row": row, "thread": thread, "ts": ts, "end": ts + dur}
    return {**{name: values[order] for name, values in columns.items()}, "order": order}


def _names(trace: Trace) -> Any:
    """The names of all host events, table after table, as one categorical."""
    parts = [getattr(trace, table)["name"].astype("category") for table in KINDS.values()]
    return union_categoricals(parts)


def _nodes_of_kernels(trace: Trace, is_call: Any, row: Ints) -> Ints:
    place = np.full(len(trace.launches) + 1, -1, dtype=np.int64)  # the last for activities without a launch
    place[row[is_call]] = np.flatnonzero(is_call)
    return place[row_numbers(trace.kernels["launch"])]


def _gpu_work(trace: Trace, events: dict[str, Any], parent: Ints, size: Ints) -> tuple[Any, Any, Any]:
    """Per event: GPU activities launched in it, their time, and what of it nothing further in launched."""
    count = len(parent)
    if len(trace.kernels) == 0:
        nothing = references(np.full(count, -1, dtype=np.int64))
        return nothing, nothing, nothing
    node = _nodes_of_kernels(trace, events["kind"] == CALL, events["row"])
    known = node >= 0
    number, time, own = (np.zeros(count, dtype=np.int64) for _ in range(3))
    np.add.at(number, node[known], 1)
    np.add.at(time, node[known], trace.kernels["dur"].to_numpy()[known])
    # A call's time is its own and that of the operator, label or frame right around it: calls explain nothing.
    is_call = events["kind"] == CALL
    owner = nearest(parent, ~is_call)
    np.add.at(own, owner[owner >= 0], time[owner >= 0])
    own[is_call] = time[is_call]
    return tuple(pd.array(v, dtype="Int64") for v in (sum_subtrees(number, size), sum_subtrees(time, size), own))  # type: ignore[return-value]
