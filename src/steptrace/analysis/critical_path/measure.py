"""The critical path of a step: the chain of waits that ends with the step.

It is followed backwards from the step's end: to the last event that the end had to wait for, from there to the last
event that this one had to wait for, and so on to the step's start. The parts between follow each other without a gap,
so their lengths add up to the step's exactly. `steptrace.analysis.critical_path.waits` and `nodes` define the waits.

The classes of the parts:

- `host`: a host thread running, in Python, operators or calls.
- `loader`: the step's thread waiting for the data loader.
- `sync`: a sync after the end of the work it waits for: its return, or all of it if the work had ended
  before. (The wait itself is on the path as that work.)
- `launch`: from the start of a launch to the start of its work, which nothing else delayed.
- `queue`: from the end of the work before to the start of the next, on a stream or across streams.
- `compute`, `comm`, `memory`: GPU work itself.

The share of a class is its part of the path, not the possible saving: without it other paths would become critical.
"""

from typing import Annotated, Any

import msgspec
import numpy as np
import pandas as pd

from steptrace.analysis.critical_path.nodes import CLASSES, Nodes, Steps, nodes_of
from steptrace.documents.base import Document, field
from steptrace.documents.program import ClassOfPath, CriticalPath
from steptrace.documents.table import frame_of, validate
from steptrace.trace.columns import references, text
from steptrace.trace.model import Trace, once


class PathPart(Document, frozen=True):
    """One part of a step's critical path. A step's parts follow each other without a gap from its start to its end, so
    that their lengths add up to the step's exactly."""

    step: Annotated[int | None, field("Row of `steps`; null where the trace has none and all of it counts.")]
    ts: Annotated[int, field("Start.")]
    dur: Annotated[int, field("Length.")]
    class_: Annotated[str, field("What the path is in: see `steptrace.analysis.critical_path.measure`.")] = (
        msgspec.field(name="class")
    )
    thread: Annotated[int | None, field("Row of `threads`, of a part on the host.")]
    kernel: Annotated[int | None, field("Row of `kernels`: the activity, or the one waited for or to start.")]


_ON_GPU = ("compute", "comm", "memory", "launch", "queue", "sync")


@once
def critical_paths(trace: Trace) -> pd.DataFrame:
    """The table `critical_path`; empty without host events. A trace without steps is taken as one."""
    nodes = nodes_of(trace)
    if nodes is None:
        return frame_of(PathPart)
    path = _parts(*nodes)
    links = {name: references(path[name].to_numpy()) for name in ("thread", "kernel")}
    step = references(path["step"].to_numpy() if len(trace.steps) else np.full(len(path), -1))
    of = text(path["class"].to_numpy(dtype=np.int64), pd.Index(list(CLASSES), dtype=object))
    return validate(path.assign(step=step, **{"class": of}, **links), PathPart)


def _parts(nodes: Nodes, steps: Steps) -> pd.DataFrame:
    """The parts of each step's path without empty ones; neighbours of one kind on one thread are joined."""
    before, time = nodes.before.tolist(), nodes.time.tolist()
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
