"""The critical path of a step: what its time was spent on, one thing after the other.

From a step's end backwards: of what the end had to wait for, that which happened last; of what that had to wait for,
again the last; and so on to the step's start. The parts between follow each other without a gap, so their lengths add
up to the step's exactly. What waits for what, `steptrace.analysis.critical_path.waits` and `nodes` say.

The classes of the parts:

- `host`: a host thread running, in Python, operators or calls.
- `loader`: the step's thread waiting for the data loader.
- `sync`: a synchronisation with nothing left to wait for: its return after the work it waited for had ended, or all of
  it if that work had ended before. (The wait itself is on the path as the work that was waited for.)
- `launch`: from the start of a launch to the start of the work it launched, which nothing else held up.
- `queue`: from the end of the work before to the start of the next, on a stream or across streams.
- `compute`, `comm`, `memory`: GPU work itself.

The share of a class is what it takes on the path, not what a step would be shorter by without it: other paths would
become critical.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from steptrace.analysis.common import tables_paths as schema
from steptrace.analysis.critical_path.nodes import CLASSES, Nodes, Steps, nodes_of
from steptrace.documents.program import ClassOfPath, CriticalPath
from steptrace.schema import frame_of, validate
from steptrace.trace.columns import references, text
from steptrace.trace.model import Trace

_ON_GPU = ("compute", "comm", "memory", "launch", "queue", "sync")


def critical_paths(trace: Trace) -> dict[str, pd.DataFrame]:
    """The tables `critical_path` (its parts) and `critical_steps` (time per class).

    A trace without steps is taken as one. Without host events there is no path, and both are empty.
    """
    nodes = nodes_of(trace)
    tables = {name: frame_of(table) for name, table in schema.PATHS.items()} if nodes is None else _tables(*nodes)
    for table in tables.values():
        table["class"] = text(table["class"].to_numpy(dtype=np.int64), pd.Index(list(CLASSES), dtype=object))
        step = table["step"].to_numpy(dtype=np.int64)
        table["step"] = references(step if len(trace.steps) else np.full(len(step), -1))
    return {name: validate(table, schema.PATHS[name]) for name, table in tables.items()}


def _tables(nodes: Nodes, steps: Steps) -> dict[str, pd.DataFrame]:
    """The two tables, each class as its place in `CLASSES`."""
    path = _parts(nodes, steps)
    spent = np.zeros((len(steps.begin), len(CLASSES)), dtype=np.int64)
    np.add.at(spent, (path["step"].to_numpy(), path["class"].to_numpy()), path["dur"].to_numpy())
    return {
        "critical_path": path.assign(**{name: references(path[name].to_numpy()) for name in ("thread", "kernel")}),
        "critical_steps": pd.DataFrame(
            {
                "step": np.repeat(np.arange(len(steps.begin)), len(CLASSES)),
                "class": np.tile(np.arange(len(CLASSES)), len(steps.begin)),
                "span_ns": np.repeat(steps.end - steps.begin, len(CLASSES)),
                "path_ns": spent.reshape(-1),
            }
        ),
    }


def _parts(nodes: Nodes, steps: Steps) -> pd.DataFrame:
    """The parts of each step's path, those without length left out and neighbours of one kind on one thread joined."""
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


def critical_path(tables: Mapping[str, pd.DataFrame], *, gpu: bool) -> CriticalPath | None:
    """The path in short: means over the steps, per class and of the steps' length, and each class's share.

    Of means the parts still add up to the step, and a part over the step is its share. None if there is no path.
    Classes that only a GPU has are None in a trace without one.
    """
    steps = tables["critical_steps"]
    if len(steps) == 0:
        return None
    spans = steps.drop_duplicates("step")["span_ns"]
    total = int(steps["path_ns"].sum())
    classes = []
    for name in CLASSES:
        path = steps.loc[(steps["class"] == name).to_numpy(), "path_ns"]
        figures: dict[str, Any] = {
            "path_ns": round(path.mean()),
            "share": float(path.sum() / total) if total else 0.0,
        }
        measured = gpu or name not in _ON_GPU
        classes.append(ClassOfPath(class_=name, **(figures if measured else dict.fromkeys(figures))))
    return CriticalPath(steps=len(spans), span_ns=round(spans.mean()), classes=tuple(classes))
