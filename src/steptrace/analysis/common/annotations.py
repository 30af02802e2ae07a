"""How long each user annotation (`record_function`) took, on the host and on the GPU, over the whole trace.

The work that belongs to an annotation is what was launched inside it, whenever it ran: on its own thread, or, while it
is open on the thread that marks the steps, by any thread that does training work (the backward pass), labels of that
thread's own or not. `steptrace.analysis.program.sections` goes by the same. Holistic Trace Analysis takes what overlaps
it on the clock.
"""

from typing import Any

import numpy as np
import pandas as pd

from steptrace import intervals, schema
from steptrace.documents.rows import Label, table_of
from steptrace.intervals import Ints
from steptrace.trace.columns import marks_steps, nearest, row_numbers, start_end, take
from steptrace.trace.model import Trace, once

ANNOTATION_TIMES = table_of("annotation_times", Label, "label")


@once
def annotation_of_kernels(trace: Trace) -> Ints:
    """Row of the innermost annotation that each activity was launched in, -1 for none; steps are none."""
    found, *others = _around_launches(trace)
    for on_behalf in others:
        found = np.where(found < 0, on_behalf, found)
    own: Ints = _own(trace)[found]
    return own


def work_in_labels(trace: Trace, device: int) -> tuple[Ints, Ints]:
    """Rows `(annotation, activity)` of what a GPU did for each annotation, steps aside, those further in included."""
    pairs = [np.empty((0, 2), dtype=np.int64)]
    above = _own(trace)[np.append(row_numbers(trace.annotations["parent"]), -1)]
    # A label of the backward pass's own thread does not take its work from the label that the pass runs for.
    for around in _around_launches(trace):
        holder = _own(trace)[around]
        kernel = np.flatnonzero((holder >= 0) & (trace.kernels["device"] == device).to_numpy())
        holder = holder[kernel]
        while len(holder):
            pairs.append(np.column_stack([holder, kernel]))
            holder = above[holder]
            kernel, holder = kernel[holder >= 0], holder[holder >= 0]
    labels, kernels = np.concatenate(pairs).T
    return labels, kernels


@once
def _around_launches(trace: Trace) -> list[Ints]:
    """For each activity the innermost annotation around its launch, -1 for none: on the thread that launched it, then,
    if another training thread did, on each thread that marks steps."""
    labels = trace.annotations
    launch = row_numbers(trace.kernels["launch"])
    time = take(trace.launches["ts"].to_numpy(), launch)
    thread = take(trace.launches["thread"].to_numpy(), launch)
    nesting = (labels["thread"].to_numpy(), *start_end(labels))
    around = [intervals.enclosing(*nesting, thread, time)]
    training = take(trace.threads["training"].to_numpy(dtype=np.int64), thread) == 1
    for marking in pd.unique(trace.steps["thread"]):
        others = np.flatnonzero(training & (thread != marking))
        on_behalf = np.full(len(launch), -1, dtype=np.int64)
        on_behalf[others] = intervals.enclosing(*nesting, np.full(len(others), marking, dtype=np.int64), time[others])
        around.append(on_behalf)
    return around


def annotation_times(trace: Trace, device: int | None) -> pd.DataFrame:
    """The annotations by label with their time on host and GPU, the most host time first (`annotation_times`)."""
    labels = trace.annotations
    own = _own(trace)
    rows = np.flatnonzero(own[:-1] == np.arange(len(labels)))
    number, names = pd.factorize(labels["name"].astype(object).iloc[rows], sort=True)
    label = np.full(len(labels) + 1, -1, dtype=np.int64)
    label[rows] = number
    table = pd.DataFrame(
        {
            "label": pd.Series(names, dtype=object),
            "count": np.bincount(number, minlength=len(names)).astype(np.int64),
            **_host_times(trace, rows, label, len(names)),
            **_device_times(trace, device, label, len(names)),
        }
    )
    table = table.sort_values(["host_ns", "label"], ascending=[False, True], kind="stable").reset_index(drop=True)
    return schema.validate(table, ANNOTATION_TIMES)


@once
def _own(trace: Trace) -> Ints:
    """For each annotation itself, or if it marks a step, the nearest one around that does not; -1 last, for -1."""
    labels = trace.annotations
    return np.append(nearest(row_numbers(labels["parent"]), ~marks_steps(labels)), -1)


def _host_times(trace: Trace, rows: Ints, label: Ints, count: int) -> dict[str, Ints]:
    labels = trace.annotations
    (ts, end), thread, threads = start_end(labels), labels["thread"].to_numpy(), len(trace.threads)
    by_thread = intervals.measure_by_group(label[rows] * threads + thread[rows], ts[rows], end[rows], count * threads)
    # What annotations within take is taken from the one right around them.
    holder = _own(trace)[row_numbers(labels["parent"])][rows]
    inner = rows[holder >= 0]
    holder = holder[holder >= 0]
    within = intervals.measure_by_group(
        holder, np.maximum(ts[inner], ts[holder]), np.minimum(end[inner], end[holder]), len(labels)
    )
    self_ns = np.zeros(count, dtype=np.int64)
    np.add.at(self_ns, label[rows], (end - ts - within)[rows])
    return {"host_ns": by_thread.reshape(count, threads).sum(axis=1), "host_self_ns": self_ns}


def _device_times(trace: Trace, device: int | None, label: Ints, count: int) -> dict[str, Any]:
    names = ("kernels", "device_ns", "device_self_ns")
    if device is None:
        return {name: pd.array([pd.NA] * count, dtype="Int64") for name in names}
    holder = annotation_of_kernels(trace)
    kernel = np.flatnonzero((holder >= 0) & (trace.kernels["device"] == device).to_numpy())
    holder = holder[kernel]
    start, end = start_end(trace.kernels)
    own = intervals.measure_by_group(label[holder], start[kernel], end[kernel], count)
    holder, kernel = work_in_labels(trace, device)
    # One label inside itself: each of its activities counts once.
    belongs, kernel = np.unique(np.column_stack([label[holder], kernel]), axis=0).T
    inclusive = intervals.measure_by_group(belongs, start[kernel], end[kernel], count)
    return dict(zip(names, (np.bincount(belongs, minlength=count).astype(np.int64), inclusive, own), strict=True))
