"""Flame graphs: the call tree with all events of one chain of names merged into one box.

`device` is as wide as the GPU activities launched inside took, summed over streams; the activities themselves, under
their short names, stand on top. Backward operators stand on the forward operator whose gradient they compute, on a box
`backward`, so that a line of the model carries all the GPU time it causes. `host` is as wide as the time on the host,
thread by thread.

Frames of PyTorch's own, of steptrace, of the standard library and of built-ins are left out, except modules,
and so are the marks of steps; what ran in them belongs to the box below.
"""

import numpy as np
import pandas as pd

from steptrace.analysis.common import tables_paths as schema
from steptrace.analysis.common.analysis import rows
from steptrace.analysis.common.call_tree import depths, kernel_nodes
from steptrace.analysis.common.kernel_names import short_name
from steptrace.documents.summary import Flame, FlameBox
from steptrace.intervals import Ints
from steptrace.schema import validate
from steptrace.trace import names as naming
from steptrace.trace.columns import Mask, nearest, references, row_numbers
from steptrace.trace.frames import USER, frame_role
from steptrace.trace.model import Trace

#: Boxes below this share of the whole are left out of summary.json: they would be narrower than a pixel.
SMALLEST_SHARE = 0.001
MOST_BOXES = 1200

_KINDS = ("root", "thread", "frame", "annotation", "op", "call", "backward", "compute", "comm", "memory")


def device_flame(trace: Trace, tree: pd.DataFrame) -> pd.DataFrame:
    """The flame graph of GPU time: the table `flame`; without GPU work it is the empty root alone."""
    shown = _shown(tree) & (tree["kind"] != "call").to_numpy()
    parent, kind, name, names = _boxes(tree, shown)
    parent, kind, name, names = _graft_backward(tree, (parent, kind, name, names))
    kernels = trace.kernels
    node = kernel_nodes(trace, tree)
    below = np.where(node >= 0, nearest(row_numbers(tree["parent"]), shown)[node], -1) if len(tree) else node
    unknown = len(names)
    short = [short_name(str(category)) for category in kernels["name"].cat.categories]
    names = [*names, "launched outside the trace", *short]
    lost = len(parent)  # the box of work whose launch is missing
    parent = np.concatenate([parent, [-1], np.where(node < 0, lost, below)])
    kinds = np.array([_KINDS.index(kind) for kind in kernels["kind"].cat.categories], dtype=np.int64)
    leaf_kind = kinds[kernels["kind"].cat.codes.to_numpy()]
    kind = np.concatenate([kind, [_KINDS.index("thread")], leaf_kind])
    # pandas keeps codes in the narrowest integers that hold them: a sum would wrap.
    code = kernels["name"].cat.codes.to_numpy().astype(np.int64)
    name = np.concatenate([name, [unknown], unknown + 1 + code])
    own = np.concatenate([np.zeros(lost + 1, dtype=np.int64), kernels["dur"].to_numpy()])
    return _merge(parent, kind, (name, names), own, "GPU time")


def host_flame(trace: Trace, tree: pd.DataFrame) -> pd.DataFrame:
    """The flame graph of host time: the table `flame`."""
    shown = _shown(tree)
    parent, kind, name, names = _boxes(tree, shown)
    threads = [
        given if isinstance(given, str) else f"thread {tid}"
        for given, tid in zip(trace.threads["name"], trace.threads["tid"], strict=True)
    ]
    count = len(parent)
    thread = tree["thread"].to_numpy()
    parent = np.concatenate([np.where(parent < 0, count + thread, parent), np.full(len(threads), -1)])
    kind = np.concatenate([kind, np.full(len(threads), _KINDS.index("thread"))])
    name = np.concatenate([name, len(names) + np.arange(len(threads))])
    own = np.zeros(len(parent), dtype=np.int64)
    holder = nearest(row_numbers(tree["parent"]), shown)
    np.add.at(own, np.where(holder >= 0, holder, count + thread), tree["host_self_ns"].to_numpy())
    return _merge(parent, kind, (name, [*names, *threads]), own, "host time")


def shown(flame: pd.DataFrame) -> Flame | None:
    """A flame graph as summary.json has it, the narrow boxes left out; None if there is nothing to show."""
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
        boxes_left_out=int((~wide).sum()),
        boxes=rows(boxes.assign(parent=references(boxes["parent"].to_numpy())), FlameBox),
    )


def _shown(tree: pd.DataFrame) -> Mask:
    """Which events get a box."""
    categories = [str(name) for name in tree["name"].cat.categories]
    roles = np.array([name.startswith("nn.Module") or frame_role(name) == USER for name in categories] or [False])
    steps = np.array([naming.step_index(name) is not None for name in categories] or [False])
    code = tree["name"].cat.codes.to_numpy()
    is_frame, is_label = (tree["kind"] == "frame").to_numpy(), (tree["kind"] == "annotation").to_numpy()
    result: Mask = np.where(is_frame, roles[code], np.where(is_label, ~steps[code], True))
    return result


def _boxes(tree: pd.DataFrame, shown: Mask) -> tuple[Ints, Ints, Ints, list[str]]:
    """Parent among the shown events, kind and name of each event; the parent of one not shown means nothing."""
    parent = row_numbers(tree["parent"])
    holder = nearest(parent, shown)
    above = np.where(parent >= 0, holder[parent], -1) if len(parent) else parent
    kinds = np.array([_KINDS.index(kind) for kind in tree["kind"].cat.categories], dtype=np.int64)
    code = tree["name"].cat.codes.to_numpy().astype(np.int64)
    return above, kinds[tree["kind"].cat.codes.to_numpy()], code, [str(name) for name in tree["name"].cat.categories]


def _graft_backward(
    tree: pd.DataFrame, boxes: tuple[Ints, Ints, Ints, list[str]]
) -> tuple[Ints, Ints, Ints, list[str]]:
    """Stand the outermost operators of the backward pass on a box `backward` on their forward operator."""
    parent, kind, name, names = boxes
    forward = row_numbers(tree["forward"])
    ts = tree["ts"].to_numpy()
    outer = (forward >= 0) & ((parent < 0) | (forward[parent] < 0))
    outer &= ts[forward] < ts  # so that no chain of parents can close
    heads = np.flatnonzero(outer)
    added = len(parent) + np.arange(len(heads))
    grafted = parent.copy()
    grafted[heads] = added
    backward = np.full(len(heads), _KINDS.index("backward"))
    return (
        np.concatenate([grafted, forward[heads]]),
        np.concatenate([kind, backward]),
        np.concatenate([name, np.full(len(heads), len(names))]),
        [*names, "backward"],
    )


def _merge(parent: Ints, kind: Ints, named: tuple[Ints, list[str]], own: Ints, root: str) -> pd.DataFrame:
    """Merge events with the same chain of names into boxes; `own` is each one's width besides what stands on it."""
    # Names in alphabetical order, so that boxes do not stand by the order of events in the file; equal ones are one.
    labels, number = np.unique(np.array([*named[1], root], dtype=object), return_inverse=True)
    name = number[named[0]] if len(named[0]) else named[0]
    # Only events that carry width, or something that does, get a box.
    carries = own > 0
    depth = depths(parent)
    levels = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[levels], np.arange(int(depth.max(initial=-1)) + 2))
    for level in range(len(bounds) - 2, 0, -1):
        rows = levels[bounds[level] : bounds[level + 1]]
        carries[parent[rows[carries[rows]]]] = True
    box = np.zeros(len(parent), dtype=np.int64)
    parts: list[tuple[Ints, Ints, Ints]] = [(np.array([-1]), np.array([0]), number[-1:])]
    count = 1
    for level in range(len(bounds) - 1):
        rows = levels[bounds[level] : bounds[level + 1]]
        rows = rows[carries[rows]]
        below = np.where(parent[rows] >= 0, box[parent[rows]], 0)
        keys, place = np.unique((below * len(_KINDS) + kind[rows]) * len(labels) + name[rows], return_inverse=True)
        box[rows] = count + place
        below_and_kind, codes = np.divmod(keys, len(labels))
        parts.append((*np.divmod(below_and_kind, len(_KINDS)), codes))
        count += len(keys)
    below, kinds, codes = (np.concatenate([part[i] for part in parts]) for i in range(3))
    calls, self_ns = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    np.add.at(calls, box[carries], 1)
    np.add.at(self_ns, box[carries], own[carries])
    calls[0] = 1
    total = self_ns.copy()
    height = depths(below)
    levels = np.argsort(height, kind="stable")
    bounds = np.searchsorted(height[levels], np.arange(int(height.max()) + 2))
    for level in range(len(bounds) - 2, 0, -1):
        rows = levels[bounds[level] : bounds[level + 1]]
        np.add.at(total, below[rows], total[rows])
    table = pd.DataFrame(
        {
            "name": pd.Series(labels[codes], dtype=object),
            "kind": pd.Categorical.from_codes(list(kinds), categories=pd.Index(list(_KINDS))),
            "parent": references(below),
            "depth": height,
            "calls": calls,
            "ns": total,
            "self_ns": self_ns,
        }
    )
    return validate(table, schema.FLAME)
