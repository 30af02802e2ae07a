"""The longest stretches of a step in which no operator runs, by the line of the program.

In such a stretch the host is in the program's own Python, in a library that is not PyTorch, or it waits. A GPU gets no
new work meanwhile.
"""

from typing import Any

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.gaps import loader_spans
from steptrace.analysis.common.registry import table_part
from steptrace.documents.subject import Absence
from steptrace.documents.subjects.host_stretches import LEAST_NS, HostStretch
from steptrace.documents.table import frame_of
from steptrace.intervals import Ints, Spans
from steptrace.trace.columns import references, union_of
from steptrace.trace.model import Trace, on_training, once
from steptrace.trace.source import sites_of

_KEYS = ["file", "line", "function", "op", "label"]


def why_no_stretches(trace: Trace) -> Absence | None:
    """Why the table is empty: the code of what the trace lacks; None if the steps simply have no stretch."""
    return None if len(_steps_with_operators(trace)) else "no_steps_with_operators"


@table_part("host_stretches", absent=why_no_stretches)
@once
def host_stretches(trace: Trace) -> pd.DataFrame:
    """The stretches of at least `LEAST_NS` by line (table `host_stretches`), the longest first."""
    spans, thread = _stretches(trace)
    if not len(spans):
        return frame_of(HostStretch)
    calls = union_of(trace.launches, on_training(trace, trace.launches))
    stretches = _sites(trace, spans, thread).assign(
        host_ns=spans[:, 1] - spans[:, 0],
        loader_ns=intervals.measure_within(loader_spans(trace), *spans.T),
        calls_ns=intervals.measure_within(calls, *spans.T),
    )
    groups = stretches.groupby(_KEYS, dropna=False, sort=False)
    table = groups.agg(
        code=("code", "first"),
        count=("host_ns", "size"),
        longest_ns=("host_ns", "max"),
        host_ns=("host_ns", "sum"),
        loader_ns=("loader_ns", "sum"),
        calls_ns=("calls_ns", "sum"),
    )
    order = ["longest_ns", "host_ns"]
    return frame_of(HostStretch, table.reset_index().sort_values(order, ascending=False, kind="stable"))


def _steps_with_operators(trace: Trace) -> pd.DataFrame:
    """`ts`, `host_dur` and `thread` of each step with an operator in it: in the others no operators were recorded."""
    steps = trace.steps[["ts", "host_dur", "thread"]]
    operators = union_of(trace.ops, on_training(trace, trace.ops))
    return steps[intervals.measure_within(operators, steps["ts"], steps["ts"] + steps["host_dur"]) > 0]


def _stretches(trace: Trace) -> tuple[Spans, Ints]:
    """The spans of the stretches, in order, and the thread of the step that each lies in."""
    operators = union_of(trace.ops, on_training(trace, trace.ops))
    spans = [intervals.empty()]
    threads = [np.empty(0, dtype=np.int64)]
    for start, length, thread in _steps_with_operators(trace).itertuples(index=False):
        free = intervals.complement(operators, int(start), int(start + length))
        spans.append(free[free[:, 1] - free[:, 0] >= LEAST_NS])
        threads.append(np.full(len(spans[-1]), thread, dtype=np.int64))
    return np.concatenate(spans), np.concatenate(threads)


def _sites(trace: Trace, spans: Spans, thread: Ints) -> pd.DataFrame:
    """The place in the program, the label and the ending operator of each stretch."""
    ending = _operator_at(trace, spans[:, 1])
    none = np.full(len(spans), -1, dtype=np.int64)
    after = trace.ops["thread"].to_numpy()[np.maximum(ending, 0)]
    within = _sites_at(trace, spans.sum(axis=1) // 2, thread, none)
    called = _sites_at(trace, spans[:, 1], np.where(ending >= 0, after, thread), ending)
    calls_it = within["file"].isna() | ((within["file"] == called["file"]) & (within["function"] == called["function"]))
    place = ["file", "line", "function", "code"]
    found = called[place].where(calls_it & (ending >= 0), within[place])
    return found.assign(op=called["op"], label=within["label"])


def _operator_at(trace: Trace, ends: Ints) -> Ints:
    """Row of the operator on a training thread that begins at each instant; of several the outermost; -1 for none."""
    rows = np.flatnonzero(on_training(trace, trace.ops))
    start, length = (trace.ops[name].to_numpy()[rows] for name in ("ts", "dur"))
    order = np.lexsort((-length, start))
    start = start[order]
    rows = rows[order]
    place = np.searchsorted(start, ends, side="left")
    begins = np.append(start, -1)[place] == ends
    return np.where(begins, np.append(rows, -1)[place], -1)


def _sites_at(trace: Trace, ts: Ints, thread: Ints, op: Ints) -> pd.DataFrame:
    events: Any = {"ts": ts, "thread": thread, "op": references(op)}
    return sites_of(trace, pd.DataFrame(events), trace.lines)
