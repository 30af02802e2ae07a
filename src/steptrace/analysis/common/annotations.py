"""Host and GPU time of each user annotation (`record_function`): in all, and in each step.

An annotation's GPU work is the work launched inside it, whenever that ran: by its own thread or, while it is open on
the thread that marks the steps, by any training thread (the backward pass), with or without labels of its own. Holistic
Trace Analysis instead counts work that overlaps it in time.
"""

from typing import Any

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.documents.labels import Label
from steptrace.documents.table import validate
from steptrace.intervals import Ints
from steptrace.trace.columns import counted, marks_steps, nearest, row_numbers, start_end, take, unmeasured
from steptrace.trace.model import Trace, launched_at, on_training, once


@once
def annotation_of_kernels(trace: Trace) -> Ints:
    """Row of the innermost annotation that each activity was launched in, steps aside; -1 for none."""
    innermost, *others = _around_launches(trace)
    for on_behalf in others:
        innermost = np.where(innermost < 0, on_behalf, innermost)
    own: Ints = _own(trace)[innermost]
    return own


def work_in_labels(trace: Trace) -> tuple[Ints, Ints]:
    """Rows `(annotation, activity)` of the work launched in each annotation or in one inside it, steps aside."""
    pairs = [np.empty((0, 2), dtype=np.int64)]
    above = _own(trace)[np.append(row_numbers(trace.annotations["parent"]), -1)]
    # Work of the backward pass belongs to its own thread's label and to the one that the pass runs for.
    for around in _around_launches(trace):
        holder = _own(trace)[around]
        kernel = np.flatnonzero((holder >= 0) & (trace.kernels["device"] == trace.device).to_numpy())
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


@once
def annotation_times(trace: Trace) -> pd.DataFrame:
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
            **_device_times(trace, label, len(names)),
        }
    )
    table = table.sort_values(["host_ns", "label"], ascending=[False, True], kind="stable").reset_index(drop=True)
    return validate(table, Label)


@once
def _own(trace: Trace) -> Ints:
    """For each annotation its row, or for a step's mark the nearest other one around it; -1 at the end, for -1."""
    labels = trace.annotations
    return np.append(nearest(row_numbers(labels["parent"]), ~marks_steps(labels)), -1)


def _host_times(trace: Trace, rows: Ints, label: Ints, count: int) -> dict[str, Ints]:
    labels = trace.annotations
    (ts, end), thread, threads = start_end(labels), labels["thread"].to_numpy(), len(trace.threads)
    by_thread = intervals.measure_by_group(label[rows] * threads + thread[rows], ts[rows], end[rows], count * threads)
    # Time of inner annotations is subtracted from the one right around them.
    holder = _own(trace)[row_numbers(labels["parent"])][rows]
    inner = rows[holder >= 0]
    holder = holder[holder >= 0]
    within = intervals.measure_by_group(
        holder, np.maximum(ts[inner], ts[holder]), np.minimum(end[inner], end[holder]), len(labels)
    )
    self_ns = np.zeros(count, dtype=np.int64)
    np.add.at(self_ns, label[rows], (end - ts - within)[rows])
    return {"host_ns": by_thread.reshape(count, threads).sum(axis=1), "host_self_ns": self_ns}


def _device_times(trace: Trace, label: Ints, count: int) -> dict[str, Any]:
    device = trace.device
    names = ("kernels", "device_ns", "device_self_ns")
    if device is None:
        return dict.fromkeys(names, unmeasured(count))
    holder = annotation_of_kernels(trace)
    kernel = np.flatnonzero((holder >= 0) & (trace.kernels["device"] == device).to_numpy())
    holder = holder[kernel]
    start, end = start_end(trace.kernels)
    own = intervals.measure_by_group(label[holder], start[kernel], end[kernel], count)
    holder, kernel = work_in_labels(trace)
    # With a label inside itself, each activity counts once.
    belongs, kernel = np.unique(np.column_stack([label[holder], kernel]), axis=0).T
    inclusive = intervals.measure_by_group(belongs, start[kernel], end[kernel], count)
    return dict(zip(names, (np.bincount(belongs, minlength=count).astype(np.int64), inclusive, own), strict=True))


@once
def section_times(trace: Trace) -> pd.DataFrame:
    """One row per step and label: `step`, `label`, `count`, `host_ns`, `device_ns`.

    Labels are the program's `record_function` labels on training threads. `host_ns` adds the lengths of a label's
    sections; of nested ones with the same label only the outer counts. `device_ns` is the time the GPU was busy with
    work launched inside them, so that `backward` owns what the autograd thread launched meanwhile; null without a GPU.
    """
    rows = _sections(trace)
    groups = rows.groupby(["step", "label"], sort=True)
    table = groups.agg(first_ts=("ts", "min"), count=("ts", "size"), host_ns=("dur", "sum")).reset_index()
    group: Ints = np.asarray(groups.ngroup(), dtype=np.int64)
    device_ns = unmeasured(len(table)) if trace.device is None else counted(_busy_ns(trace, rows, group))
    table = table.assign(device_ns=device_ns)
    return table.sort_values(["step", "first_ts", "label"], kind="stable", ignore_index=True).drop(columns="first_ts")


@once
def section_medians(trace: Trace) -> pd.DataFrame:
    """The sections of `section_times` per step: medians over all steps, a step without the label counting as 0.

    Returns `label`, `count_per_step`, `host_ns_per_step`, `device_ns_per_step` in the order of the first step.
    """
    columns = ["label", "count_per_step", "host_ns_per_step", "device_ns_per_step"]
    rows, steps = [], range(len(trace.steps))
    for label, own in section_times(trace).groupby("label", sort=False):
        every = own.set_index("step")[["count", "host_ns", "device_ns"]].reindex(steps, fill_value=0)
        count, host_ns, device_ns = every.median(skipna=False)
        rows.append((label, count, round(host_ns), None if pd.isna(device_ns) else round(device_ns)))
    return pd.DataFrame(rows, columns=columns)


def _sections(trace: Trace) -> pd.DataFrame:
    """The labelled sections in steps on training threads, indexed as `annotations`; none inside one of its label."""
    labels = trace.annotations
    name = labels["name"].to_numpy(dtype=object)
    inside_same = np.zeros(len(labels), dtype=bool)
    parent = row_numbers(labels["parent"])
    above = parent.copy()
    while (open_ := above >= 0).any():
        inside_same[open_] |= name[open_] == name[above[open_]]
        above[open_] = parent[above[open_]]
    chosen = ~inside_same & ~marks_steps(labels) & labels["step"].notna().to_numpy() & on_training(trace, labels)
    sections = labels.loc[chosen, ["ts", "dur"]]
    return sections.assign(step=row_numbers(labels["step"])[chosen], label=name[chosen])


def _busy_ns(trace: Trace, rows: pd.DataFrame, group: Ints) -> Ints:
    """For each group of sections the time the GPU was busy with what was launched in them."""
    of = np.full(len(trace.annotations), -1, dtype=np.int64)
    of[rows.index] = group
    label, kernel = work_in_labels(trace)
    # By time: of labels that cross, the later one has the earlier one as its parent even after that has ended.
    within = (of[label] >= 0) & (launched_at(trace)[kernel] < start_end(trace.annotations)[1][label])
    (start, end), kernel = start_end(trace.kernels), kernel[within]
    return intervals.measure_by_group(of[label[within]], start[kernel], end[kernel], int(group.max(initial=-1)) + 1)
