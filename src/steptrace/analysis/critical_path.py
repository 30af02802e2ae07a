"""The critical path of a step: the chain of waits that ends with the step.

It is followed backwards from the step's end: to the last event that the end had to wait for, from there to the last
event that this one had to wait for, and so on to the step's start. The parts between follow each other without a gap,
so their lengths add up to the step's exactly.

The classes of the parts:

- `host`: a host thread running, in Python, operators or calls.
- `loader`: the step's thread waiting for the data loader.
- `sync`: a sync after the end of the work it waits for: its return, or all of it if the work had ended
  before. (The wait itself is on the path as that work.)
- `launch`: from the start of a launch to the start of its work, which nothing else delayed.
- `queue`: from the end of the work before to the start of the next, on a stream or across streams.
- `compute`, `comm`, `memory`: GPU work itself.

The share of a class is its part of the path, not the possible saving: without it other paths would become critical.

Four modules prepare the path. `critical_path_waits` says what GPU work and syncs wait for. `critical_path_steps` says
which steps and threads count. `critical_path_nodes` makes the instants of the steps. `critical_path_edges` says which
of them had to wait for which. If a node had to wait for several nodes, the last one counts. If these are at one
instant, GPU work comes before launches, and launches before the host.

A host thread continues after its previous instant. If a training thread (the autograd engine's) was busy while the
steps' own thread recorded nothing, it worked for that thread: its burst starts when the steps' thread hands over, and
the steps' thread continues after the burst. Any other thread runs independently.
"""

from array import array
from typing import Annotated, Any

import msgspec
import numpy as np
import pandas as pd

from steptrace.analysis.common.activity import why_calls_unknown
from steptrace.analysis.common.registry import part, table
from steptrace.analysis.critical_path_edges import CLASSES, LastWaits, edges_of, latest
from steptrace.analysis.critical_path_nodes import Nodes, nodes_of, select
from steptrace.analysis.critical_path_steps import Steps, steps_of
from steptrace.analysis.critical_path_waits import work_of
from steptrace.documents.base import Document, field, reference
from steptrace.documents.program import ClassOfPath, CriticalPath
from steptrace.documents.subject import Absence
from steptrace.documents.table import frame_of, validate
from steptrace.trace.columns import references, text
from steptrace.trace.model import Trace, once


class PathPart(Document, frozen=True):
    """One part of a step's critical path. A step's parts follow each other without a gap from its start to its end, so
    that their lengths add up to the step's exactly."""

    step: Annotated[int | None, reference("steps", "null if the trace has no steps; then all of it counts.")]
    ts: Annotated[int, field("Start.")]
    dur: Annotated[int, field("Length.")]
    class_: Annotated[str, field("What the path is in: see `steptrace.analysis.critical_path`.")] = msgspec.field(
        name="class"
    )
    thread: Annotated[int | None, reference("threads", "of a part on the host.")]
    kernel: Annotated[int | None, reference("kernels", "the activity, or the one waited for or to start.")]


_ON_GPU = ("compute", "comm", "memory", "launch", "queue", "sync")


def _why_not_followed(trace: Trace) -> Absence | None:
    """What a path cannot be followed without: the GPU's records, and the host's launches and syncs."""
    if trace.device is None and trace.meta.records.lost:
        return "gpu_records_lost"
    # A program without a device calls no runtime.
    return why_calls_unknown(trace) if trace.device is not None or len(trace.launches) else None


def why_no_path(trace: Trace) -> Absence:
    """Why there is no path: the code of what the trace lacks."""
    return _why_not_followed(trace) or "no_host_event"


@table("critical_path", PathPart)
@once
def critical_paths(trace: Trace) -> pd.DataFrame:
    """The table `critical_path`; empty where `why_no_path` says so. A trace without steps is taken as one."""
    return frame_of(PathPart) if _why_not_followed(trace) is not None else followed(trace)


def followed(trace: Trace) -> pd.DataFrame:
    """The same, whatever the trace lacks."""
    work = work_of(trace)
    steps = steps_of(trace, work)
    if steps is None:
        return frame_of(PathPart)
    selection = select(trace, work, steps)
    nodes = nodes_of(trace, work, steps, selection)
    path = _walk(nodes, latest(nodes, edges_of(trace, work, steps, selection, nodes)), steps)
    del work, selection, nodes  # with the table's columns they would be the peak of memory
    links = {name: references(path[name].to_numpy()) for name in ("thread", "kernel")}
    step = references(path["step"].to_numpy() if len(trace.steps) else np.full(len(path), -1))
    names = text(path["class"].to_numpy(dtype=np.int64), pd.Index(list(CLASSES), dtype=object))
    return validate(path.assign(step=step, **{"class": names}, **links), PathPart)


def _walk(nodes: Nodes, waits: LastWaits, steps: Steps) -> pd.DataFrame:
    """The parts of each step's path without empty ones; neighbours of one kind on one thread are joined."""
    # Views give Python's numbers, as lists do; lists of all nodes would be the peak of memory.
    before = waits.before.data
    time = nodes.time.data
    walked = array("i")
    counts = []
    for node, begin in zip(nodes.step_ends.tolist(), steps.begin.tolist(), strict=True):
        path = array("i")
        while time[node] > begin:
            path.append(node)
            node = before[node]
        path.reverse()
        walked += path
        counts.append(len(path))
    row = np.array(walked, dtype=np.int64)
    step = np.repeat(np.arange(len(counts)), counts)
    start, end = np.maximum(nodes.time[waits.before[row]], steps.begin[step]), nodes.time[row]
    long = end > start
    row = row[long]
    step = step[long]
    start = start[long]
    end = end[long]
    kind = waits.kind[row]
    thread = waits.thread[row]
    kernel = waits.kernel[row]
    alike = (step[1:] == step[:-1]) & (kind[1:] == kind[:-1]) & (thread[1:] == thread[:-1])
    alike &= (kernel[1:] < 0) & (kernel[:-1] < 0)
    first = np.flatnonzero(np.append(True, ~alike)[: len(row)])
    last = np.append(first[1:], len(row)) - 1 if len(row) else first
    parts = {"step": step[first], "ts": start[first], "dur": end[last] - start[first]}
    return pd.DataFrame({**parts, "class": kind[first], "thread": thread[first], "kernel": kernel[first]})


@part("critical_path", absent=why_no_path)
def critical_path(trace: Trace) -> CriticalPath | None:
    """The path's summary: means over the steps, per class and of the steps' length, and each class's share.

    Means of the parts still add up to the mean step. None without a path. Classes of GPU work are None without a GPU.
    """
    path = critical_paths(trace)
    steps = len(trace.steps) or 1
    gpu = trace.device is not None
    if len(path) == 0:
        return None
    total = int(path["dur"].sum())
    by_class = path.groupby("class", observed=False)["dur"].sum()
    classes = []
    for name in CLASSES:
        spent = int(by_class[name])
        figures: dict[str, Any] = {"path_ns": round(spent / steps), "share": spent / total}
        measured = gpu or name not in _ON_GPU
        classes.append(ClassOfPath(class_=name, **(figures if measured else dict.fromkeys(figures))))
    return CriticalPath(steps=steps, span_ns=round(total / steps), classes=tuple(classes))
