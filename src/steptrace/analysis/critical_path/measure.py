"""The critical path of a step: what its time was spent on, one thing after the other, and what each kind costs.

From a step's end backwards: of what the end had to wait for, that which happened last; of what that had to wait for,
again the last; and so on to the step's start. The parts between follow each other without a gap, so their lengths add
up to the step's exactly. What waits for what, `steptrace.analysis.critical_path.dependencies` and `graph` say.

The classes of the parts:

- `host`: a host thread running, in Python, operators or calls.
- `loader`: the step's thread waiting for the data loader.
- `sync`: a synchronisation with nothing left to wait for: its return after the work it waited for had ended, or all of
  it if that work had ended before. (The wait itself is on the path as the work that was waited for.)
- `launch`: from the start of a launch to the start of the work it launched, which nothing else held up.
- `queue`: from the end of the work before to the start of the next, on a stream or across streams.
- `compute`, `comm`, `memory`: GPU work itself.

What-if: how long all steps would take if all parts of a class, on the path or off it, took no time, and for `sync` if
the host waited for nothing. Everything else keeps the length it had, and other paths become critical: a bound for what
work on that class can bring, and less than its share of the path as a rule. It can also be more: a host that no longer
waits runs ahead of the GPU, into the next step, and what it does there is no longer waited for.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from steptrace.analysis.common import tables_paths as schema
from steptrace.analysis.critical_path.build import graph_of
from steptrace.analysis.critical_path.graph import CLASSES, SYNC, Graph
from steptrace.compiled import compiled
from steptrace.documents.program import ClassOfPath, CriticalPath
from steptrace.intervals import Ints
from steptrace.schema import frame_of, validate
from steptrace.trace.columns import references, text
from steptrace.trace.model import Trace

_ON_GPU = ("compute", "comm", "memory", "launch", "queue", "sync")


def critical_paths(trace: Trace) -> dict[str, pd.DataFrame]:
    """The tables `critical_path` (its parts), `critical_steps` (time per class) and `critical_classes` (what-if).

    A trace without steps is taken as one. Without host events there is no path, and all are empty.
    """
    graph = graph_of(trace)
    if graph is None:
        tables = {name: frame_of(table) for name, table in schema.PATHS.items()}
    else:
        tables = _tables(graph)
    for table in tables.values():
        table["class"] = text(table["class"].to_numpy(dtype=np.int64), pd.Index(list(CLASSES), dtype=object))
        if "step" in table:
            step = table["step"].to_numpy(dtype=np.int64)
            table["step"] = references(step if len(trace.steps) else np.full(len(step), -1))
    return {name: validate(table, schema.PATHS[name]) for name, table in tables.items()}


def _tables(graph: Graph) -> dict[str, pd.DataFrame]:
    """The three tables, each class as its place in `CLASSES`."""
    paths = [_path(graph, step) for step in range(len(graph.begin))]
    every = [np.concatenate(columns) for columns in zip(*paths, strict=True)]
    parts = pd.DataFrame(dict(zip(("step", "ts", "dur", "class", "thread", "kernel"), every, strict=True)))
    return {
        "critical_path": parts.assign(**{name: references(parts[name].to_numpy()) for name in ("thread", "kernel")}),
        "critical_steps": _shares(graph, parts),
        "critical_classes": _whatif(graph),
    }


def left_without(graph: Graph, kind: int) -> int:
    """Length of all steps, ns, if everything of a class (its place in `CLASSES`) took no time."""
    removed = graph.kind == kind
    return graph.left_without(removed | graph.wait if kind == SYNC else removed, waits=kind == SYNC)


def critical_path(tables: Mapping[str, pd.DataFrame], *, gpu: bool) -> CriticalPath | None:
    """The path in short: means over the steps, per class and of the steps' length, and each class's share.

    Of means the parts still add up to the step, and a part over the step is its share. What is left and saved is that
    of all steps divided by their number. None if there is no path. Classes that only a GPU has are None in a trace
    without one.
    """
    steps = tables["critical_steps"]
    if len(steps) == 0:
        return None
    spans = steps.drop_duplicates("step")["span_ns"]
    total = int(steps["path_ns"].sum())
    classes = []
    for name, row in tables["critical_classes"].set_index("class").iterrows():
        measured = gpu or name not in _ON_GPU
        path = steps.loc[(steps["class"] == name).to_numpy(), "path_ns"]
        figures: dict[str, Any] = {
            "path_ns": round(path.mean()),
            "share": float(path.sum() / total) if total else 0.0,
            "left_ns": round(row["left_ns"] / len(spans)),
            "saved_ns": round((row["span_ns"] - row["left_ns"]) / len(spans)),
        }
        classes.append(ClassOfPath(class_=str(name), **(figures if measured else dict.fromkeys(figures))))
    return CriticalPath(steps=len(spans), span_ns=round(spans.mean()), classes=tuple(classes))


def _path(graph: Graph, step: int) -> tuple[NDArray[Any], ...]:
    """The parts of a step's path, those without length left out and neighbours of one kind on one thread joined.

    Columns: step, start, length, class, thread, kernel.
    """
    begin = int(graph.begin[step])
    edges = _path_edges(graph, int(graph.end[step]), begin)
    start, end = np.maximum(graph.time[graph.source[edges]], begin), graph.time[graph.target[edges]]
    edges, start, end = (values[end > start] for values in (edges, start, end))
    kind, thread, kernel = graph.kind[edges], graph.thread[edges], graph.kernel[edges]
    first = np.ones(len(edges), dtype=bool)
    first[1:] = (kind[1:] != kind[:-1]) | (thread[1:] != thread[:-1]) | (kernel[1:] >= 0) | (kernel[:-1] >= 0)
    rows = np.flatnonzero(first)
    stop = np.append(rows[1:], len(edges)) - 1 if len(edges) else rows
    return np.full(len(rows), step), start[rows], end[stop] - start[rows], kind[rows], thread[rows], kernel[rows]


def _path_edges(graph: Graph, node: int, begin: int) -> Ints:
    """The binding edges that lead to a node from an instant `begin`, in order of time."""
    edges = np.empty(len(graph.time), dtype=np.int32)
    count = compiled.path(graph.binding, graph.source, graph.time, edges, node, begin)
    return edges[:count][::-1].astype(np.int64)


def _shares(graph: Graph, parts: pd.DataFrame) -> pd.DataFrame:
    """Per step and class its time on the path."""
    steps = len(graph.begin)
    spent = np.zeros((steps, len(CLASSES)), dtype=np.int64)
    np.add.at(spent, (parts["step"].to_numpy(), parts["class"].to_numpy()), parts["dur"].to_numpy())
    return pd.DataFrame(
        {
            "step": np.repeat(np.arange(steps), len(CLASSES)),
            "class": np.tile(np.arange(len(CLASSES)), steps),
            "span_ns": np.repeat(graph.time[graph.end] - graph.begin, len(CLASSES)),
            "path_ns": spent.reshape(-1),
        }
    )


def _whatif(graph: Graph) -> pd.DataFrame:
    """Per class what would be left of all steps without it."""
    kinds = range(len(CLASSES))
    left = [left_without(graph, kind) if (graph.kind == kind).any() else graph.span_ns for kind in kinds]
    return pd.DataFrame({"class": kinds, "span_ns": graph.span_ns, "left_ns": left})
