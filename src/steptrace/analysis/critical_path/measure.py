"""The critical path of a step: what its time was spent on, one thing after the other, and what each kind costs.

From the step's end backwards: of what the end had to wait for, that which happened last; of what that had to wait for,
again the last; and so on to the step's start. The parts between follow each other without a gap, so their lengths add
up to the step's exactly. What waits for what, `steptrace.analysis.critical_path.dependencies` and `step_graph` say.

The classes of the parts:

- `host`: a host thread running, in Python, operators or calls.
- `loader`: the step's thread waiting for the data loader.
- `sync`: a synchronisation with nothing left to wait for: its return after the work it waited for had ended, or all of
  it if that work had ended before. (The wait itself is on the path as the work that was waited for.)
- `launch`: from the start of a launch to the start of the work it launched, which nothing else held up.
- `queue`: from the end of the work before to the start of the next, on a stream or across streams.
- `compute`, `comm`, `memory`: GPU work itself.

What-if: the length the step would have if all parts of a class, on the path or off it, took no time, and for `sync` if
the host waited for nothing. Everything else keeps the length it had, and other paths become critical: a bound for what
work on that class can bring, and less than its share of the path as a rule.
"""

from typing import Any

import numpy as np
import pandas as pd

from steptrace.analysis.common import tables_paths as schema
from steptrace.analysis.critical_path.build import step_graphs
from steptrace.analysis.critical_path.graph import CLASSES, SYNC, StepGraph
from steptrace.intervals import Ints
from steptrace.schema import validate
from steptrace.trace.columns import references, text
from steptrace.trace.model import Trace

_ON_GPU = ("compute", "comm", "memory", "launch", "queue", "sync")


def critical_paths(trace: Trace) -> dict[str, pd.DataFrame]:
    """The tables `critical_path` (its parts) and `critical_steps` (time per class, and what-if) of all steps.

    A trace without steps is taken as one. Without host events there is no path, and both tables are empty.
    """
    parts, steps = [], []
    for graph in step_graphs(trace):
        on_path = path_edges(graph)
        parts.append(_parts(graph, on_path))
        steps.append(_shares(graph, on_path))
    classes = pd.Index(list(CLASSES), dtype=object)
    joined = {name: _concat(tables, name) for name, tables in (("critical_path", parts), ("critical_steps", steps))}
    for table in joined.values():
        table["step"] = references(table["step"].to_numpy(dtype=np.int64))
        table["class"] = text(table["class"].to_numpy(dtype=np.int64), classes)
    path = joined["critical_path"]
    path = path.assign(**{name: references(path[name].to_numpy(dtype=np.int64)) for name in ("thread", "kernel")})
    return {
        "critical_path": validate(path, schema.CRITICAL_PATH),
        "critical_steps": validate(joined["critical_steps"], schema.CRITICAL_STEPS),
    }


def path_edges(graph: StepGraph) -> Ints:
    """The edges of the critical path, from the step's start to its end."""
    binding, source = graph.binding.tolist(), graph.source.tolist()
    edges, node = [], len(graph.time) - 1
    while (edge := binding[node]) >= 0:
        edges.append(edge)
        node = source[edge]
    return np.array(edges[::-1], dtype=np.int64)


def left_without(graph: StepGraph, kind: int) -> int:
    """Length of the step, ns, if everything of a class (its place in `CLASSES`) took no time."""
    weight = np.where(graph.kind == kind, 0, graph.weight)
    return graph.longest(weight, without=graph.wait if kind == SYNC else None)


def summary(tables: dict[str, pd.DataFrame], *, gpu: bool) -> dict[str, Any] | None:
    """The part of summary.json: means over the steps, per class and of the steps' length, and each class's share.

    Of means the parts still add up to the step, and a part over the step is its share. None if there is no path.
    Classes that only a GPU has are None in a trace without one.
    """
    steps = tables["critical_steps"]
    if len(steps) == 0:
        return None
    total = int(steps["path_ns"].sum())
    classes = []
    for name in CLASSES:
        rows = steps[(steps["class"] == name).to_numpy()]
        measured = gpu or name not in _ON_GPU
        path, left = rows["path_ns"], rows["left_ns"]
        saved = rows["span_ns"] - left
        figures = {
            "path_ns": round(path.mean()),
            "share": float(path.sum() / total) if total else 0.0,
            "left_ns": round(left.mean()),
            "saved_ns": round(saved.mean()),
        }
        classes.append({"class": name, **(figures if measured else dict.fromkeys(figures))})
    spans = steps.drop_duplicates("step")["span_ns"]
    return {"steps": len(spans), "span_ns": round(spans.mean()), "classes": classes}


def _parts(graph: StepGraph, edges: Ints) -> pd.DataFrame:
    """The path's parts, those without length left out and neighbours of one kind on one thread joined."""
    start, end = graph.time[graph.source[edges]], graph.time[graph.target[edges]]
    edges, start, end = (values[end > start] for values in (edges, start, end))
    kind, thread, kernel = graph.kind[edges], graph.thread[edges], graph.kernel[edges]
    first = np.ones(len(edges), dtype=bool)
    first[1:] = (kind[1:] != kind[:-1]) | (thread[1:] != thread[:-1]) | (kernel[1:] >= 0) | (kernel[:-1] >= 0)
    rows = np.flatnonzero(first)
    stop = np.append(rows[1:], len(edges)) - 1
    return pd.DataFrame(
        {
            "step": -1 if graph.step is None else graph.step,
            "ts": start[rows],
            "dur": end[stop] - start[rows],
            "class": kind[rows],
            "thread": thread[rows],
            "kernel": kernel[rows],
        }
    )


def _shares(graph: StepGraph, edges: Ints) -> pd.DataFrame:
    """Per class: its time on the path, and what would be left of the step without it."""
    spent = np.zeros(len(CLASSES), dtype=np.int64)
    np.add.at(spent, graph.kind[edges], graph.weight[edges])
    occurs = np.bincount(graph.kind, minlength=len(CLASSES)) > 0
    return pd.DataFrame(
        {
            "step": -1 if graph.step is None else graph.step,
            "class": np.arange(len(CLASSES)),
            "span_ns": graph.span_ns,
            "path_ns": spent,
            "left_ns": [left_without(graph, k) if occurs[k] else graph.span_ns for k in range(len(CLASSES))],
        }
    )


def _concat(tables: list[pd.DataFrame], name: str) -> pd.DataFrame:
    columns = {"critical_path": schema.CRITICAL_PATH, "critical_steps": schema.CRITICAL_STEPS}[name].names
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=columns, dtype=np.int64)
