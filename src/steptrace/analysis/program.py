"""GPU time by line, and GPU and host time as flame graphs.

A flame graph is the call tree with all events of one chain of names merged into one box.

In `device` a box is as wide as the GPU activities launched inside, summed over streams; the activities, under their
short names, are on top. Backward operators are on the forward operator whose gradient they compute, in a box
`backward`, so that a line of the model carries all the GPU time it causes. In `host` a box is as wide as its time on
the host, thread by thread.

Frames of PyTorch, steptrace, the standard library and built-ins are left out, except modules, and so are the marks of
steps; their time belongs to the box below.
"""

from typing import Annotated

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from steptrace.analysis.common.call_tree import call_tree, depths, device_time_by, kernel_nodes, levels
from steptrace.analysis.common.kernel_names import short_name
from steptrace.analysis.common.rows import rows
from steptrace.compiled import compiled
from steptrace.documents.base import Document, field
from steptrace.documents.program import Flame, FlameBox, LineTime, Program
from steptrace.documents.table import frame_of
from steptrace.intervals import Ints
from steptrace.trace.columns import Mask, Rows, map_names, marks_steps, nearest, references, row_numbers, take
from steptrace.trace.frames import USER, frame_role
from steptrace.trace.model import Trace, on_training, once

#: Boxes below this share of the width are left out of summary.json: they would be narrower than a pixel. Of more than
#: so many the widest are kept; the tables have all.
SMALLEST_SHARE = 0.001
MOST_BOXES = 180

#: Parent, kind and name of each event; the text of each name.
_Boxes = tuple[Rows, NDArray[np.int8], Rows, list[str]]

_KINDS = ("root", "thread", "frame", "label", "op", "call", "backward", "compute", "comm", "memory")


class FlameRow(Document, frozen=True):
    """One box of a flame graph: all events with the same chain of names above them. Parents stand before children."""

    name: Annotated[str, field("Name shown.")]
    kind: Annotated[
        str,
        field(
            "`root`, `thread`, `frame`, `label`, `op`, `call`, `backward`, or a kernel's class: `compute`, "
            "`comm`, `memory`."
        ),
    ]
    parent: Annotated[int | None, field("Row of this table.")]
    depth: Annotated[int, field("Number of boxes below it.")]
    calls: Annotated[int, field("Events merged into it.")]
    ns: Annotated[int, field("Its width: host time, or the summed lengths of GPU activities.")]
    self_ns: Annotated[int, field("Width not covered by the boxes on it.")]


@once
def device_flame(trace: Trace) -> pd.DataFrame:
    """The flame graph of GPU time: the table `flame`; without GPU work it is the empty root alone."""
    tree = call_tree(trace)
    shown = _shown(tree) & (tree["kind"] != "call").to_numpy()
    parent, kind, name, names = _boxes(tree, shown)
    parent, kind, name, names = _graft_backward(tree, (parent, kind, name, names))
    kernels = trace.kernels
    node = kernel_nodes(trace)
    below = take(nearest(_parents(tree), shown), node)
    unknown = len(names)
    short = [short_name(str(category)) for category in kernels["name"].cat.categories]
    names = [*names, "launched outside the trace", *short]
    lost = len(parent)  # the box of work whose launch is missing
    parent = np.concatenate([parent, [-1], np.where(node < 0, lost, below)], dtype=np.int32)
    kind = np.concatenate([kind, [_KINDS.index("thread")], _kinds(kernels)], dtype=np.int8)
    # pandas keeps codes in the narrowest integers that hold them: a sum would wrap.
    code = kernels["name"].cat.codes.to_numpy().astype(np.int32)
    name = np.concatenate([name, [unknown], unknown + 1 + code], dtype=np.int32)
    own = np.concatenate([np.zeros(lost + 1, dtype=np.int64), kernels["dur"].to_numpy()])
    return _merge(parent, kind, (name, names), own, "GPU time")


@once
def host_flame(trace: Trace) -> pd.DataFrame:
    """The flame graph of host time: the table `flame`. Threads that do no training work (a loader's, a progress
    bar's) mostly wait, and are left out."""
    tree = call_tree(trace)
    shown = _shown(tree)
    parent, kind, name, names = _boxes(tree, shown)
    threads = [
        given if isinstance(given, str) else f"thread {tid}"
        for given, tid in zip(trace.threads["name"], trace.threads["tid"], strict=True)
    ]
    count = len(parent)
    thread = tree["thread"].to_numpy()
    own = np.zeros(count + len(threads), dtype=np.int64)
    holder = nearest(_parents(tree), shown)
    counted = np.flatnonzero(on_training(trace, tree))
    holder = np.where(holder >= 0, holder, count + thread)[counted]
    np.add.at(own, holder, tree["host_self_ns"].to_numpy()[counted])
    del holder, counted
    parent = np.concatenate([np.where(parent < 0, count + thread, parent), np.full(len(threads), -1)], dtype=np.int32)
    kind = np.concatenate([kind, np.full(len(threads), _KINDS.index("thread"))], dtype=np.int8)
    name = np.concatenate([name, len(names) + np.arange(len(threads))], dtype=np.int32)
    return _merge(parent, kind, (name, [*names, *threads]), own, "host time")


def shown(flame: pd.DataFrame) -> Flame | None:
    """A flame graph for summary.json, without the narrow boxes; None if it is empty."""
    total = int(flame["ns"].iloc[0])
    if total == 0:
        return None
    wide = flame["ns"].to_numpy() >= max(total * SMALLEST_SHARE, 1)
    if wide.sum() > MOST_BOXES:
        wide &= flame["ns"].to_numpy() > np.sort(flame["ns"].to_numpy())[-MOST_BOXES - 1]
        wide[0] = True
    place = np.cumsum(wide) - 1
    parent = row_numbers(flame["parent"])[wide]
    boxes = flame.loc[wide, ["name", "kind", "calls", "ns"]].assign(parent=np.where(parent < 0, -1, place[parent]))
    return Flame(
        total_ns=total,
        boxes=rows(boxes.assign(parent=references(boxes["parent"].to_numpy())), FlameBox),
    )


def _shown(tree: pd.DataFrame) -> Mask:
    """A mask of the events that get a box."""
    own = map_names(tree["name"], lambda name: name.startswith("nn.Module") or frame_role(name) == USER)
    is_frame, is_label = (tree["kind"] == "frame").to_numpy(), (tree["kind"] == "label").to_numpy()
    result: Mask = np.where(is_frame, own, ~(is_label & marks_steps(tree)))
    return result


def _parents(tree: pd.DataFrame) -> Rows:
    return tree["parent"].to_numpy(dtype=np.int32, na_value=-1)


def _boxes(tree: pd.DataFrame, shown: Mask) -> _Boxes:
    """Parent among the shown events, kind and name of each event; the parent of a hidden one is arbitrary."""
    parent = _parents(tree)
    above = take(nearest(parent, shown), parent)
    code = tree["name"].cat.codes.to_numpy().astype(np.int32)
    return above, _kinds(tree), code, [str(name) for name in tree["name"].cat.categories]


def _kinds(rows: pd.DataFrame) -> NDArray[np.int8]:
    return map_names(rows["kind"], _KINDS.index, np.int8)


def _graft_backward(tree: pd.DataFrame, boxes: _Boxes) -> _Boxes:
    """Move the backward pass's outermost operators into a box `backward` on their forward operator."""
    parent, kind, name, names = boxes
    forward = tree["forward"].to_numpy(dtype=np.int32, na_value=-1)
    ts = tree["ts"].to_numpy()
    outer = (forward >= 0) & ((parent < 0) | (forward[parent] < 0))
    outer &= ts[forward] < ts  # so that no chain of parents can close
    heads = np.flatnonzero(outer)
    added = len(parent) + np.arange(len(heads))
    grafted = parent.copy()
    grafted[heads] = added
    backward = np.full(len(heads), _KINDS.index("backward"))
    return (
        np.concatenate([grafted, forward[heads]], dtype=np.int32),
        np.concatenate([kind, backward], dtype=np.int8),
        np.concatenate([name, np.full(len(heads), len(names))], dtype=np.int32),
        [*names, "backward"],
    )


def _merge(parent: Rows, kind: NDArray[np.int8], named: tuple[Rows, list[str]], own: Ints, root: str) -> pd.DataFrame:
    """Merge events with the same chain of names into boxes; `own` is each event's width without its children's."""
    # Names in alphabetical order, so that the order of events in the file does not matter; equal ones are one.
    labels, number = np.unique(np.array([*named[1], root], dtype=object), return_inverse=True)
    key = kind * np.int32(len(labels))
    key += number.astype(np.int32)[named[0]]
    below, key, calls, self_ns = merged(parent, key, own)
    below = np.append(-1, below + 1)
    kinds, codes = np.divmod(np.append(number[-1], key), len(labels))
    calls, self_ns = np.append(1, calls), np.append(0, self_ns)
    total = self_ns.copy()
    height = depths(below)
    for level in levels(height)[:0:-1]:
        np.add.at(total, below[level], total[level])
    return frame_of(
        FlameRow,
        {
            "name": labels[codes],
            "kind": pd.Categorical.from_codes(list(kinds), categories=pd.Index(list(_KINDS))),
            "parent": references(below),
            "depth": height,
            "calls": calls,
            "ns": total,
            "self_ns": self_ns,
        },
    )


def merged(parent: Rows, key: Rows, own: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """One box for all rows of a forest with the same chain of keys, if any of them or of their subtrees has width.

    Args:
        parent: row of each row's parent, int32, -1 for none.
        key: rows with equal keys and parents are merged, int32.
        own: each row's width, without its children's.

    Returns:
        For each box its parent's index (-1 for none), its key, its number of rows with width in their subtree, and the
        sum of their own widths; level by level, and within a level by parent and key.
    """
    boxes = compiled.merge_boxes(parent, key, own, np.empty(len(parent), dtype=np.int32))
    box_parent, box_key, calls, widths = (
        np.frombuffer(data, dtype=dtype).astype(np.int64)
        for data, dtype in zip(boxes, (np.int32, np.int32, np.int64, np.int64), strict=True)
    )
    place, order, before = np.full(len(box_parent), -1, dtype=np.int64), list[Ints](), 0
    for level in levels(depths(box_parent)):
        order.append(level[np.lexsort((box_key[level], take(place, box_parent[level])))])
        place[order[-1]] = np.arange(before, before + len(level))
        before += len(level)
    by_level = np.concatenate(order)
    return take(place, box_parent[by_level]), box_key[by_level], calls[by_level], widths[by_level]


#: How many source lines summary.json holds.
MOST_LINES = 25

_LINE = ["file", "line", "function", "code"]


def program(trace: Trace) -> Program:
    """GPU time by source line (None without a GPU), and both flame graphs."""
    by_line = None
    if trace.devices:
        by_line = rows(device_time_by(trace, _LINE).dropna(subset="file").head(MOST_LINES), LineTime)
    return Program(
        by_line=by_line,
        device_flame=shown(device_flame(trace)),
        host_flame=shown(host_flame(trace)),
        stacks=bool((host_flame(trace)["kind"] == "frame").any()),
    )
