"""Labels (`record_function`; PyTorch calls them user annotations): the training loop's parts, and each label's time.

A loop without labels has parts, too: by PyTorch's own labels, and the operators of the backward pass.

A label's GPU work is the work launched inside it, whenever that ran: by its own thread or, while it is open on
the thread that marks the steps, by any training thread (the backward pass), with or without labels of its own. Holistic
Trace Analysis instead counts work that overlaps it in time.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.activity import launches_measured
from steptrace.analysis.common.registry import part, table
from steptrace.documents.labels import Label
from steptrace.documents.table import rows, validate
from steptrace.intervals import Ints
from steptrace.trace.columns import has_ancestor, marks_steps, nearest, row_numbers, start_end, take, unmeasured
from steptrace.trace.model import Trace, launched_at, on_training, once
from steptrace.trace.names import HOST_PARTS, LOADER_LABEL

#: PyTorch's own labels, and their parts of a step.
_LABELS: Final = {"data": LOADER_LABEL, "optimizer": re.compile(r"^Optimizer\.")}

#: Most pairs of a label and an activity that are held at once.
_MOST_PAIRS: Final = 1 << 17


def is_training(trace: Trace) -> bool | None:
    """Whether a trace holds a backward pass or an optimizer step; None if that cannot be determined.

    A graph of kernels launched at once may hold either, and a trace without operators shows none.
    """
    labels = [str(name) for name in trace.labels["name"].unique()]
    if trace.ops["backward"].any() or any(
        name in ("backward", "optimizer") or name.startswith("Optimizer.") for name in labels
    ):
        return True
    graphs = any("GraphLaunch" in str(name) for name in trace.launches["name"].unique())
    return None if graphs or len(trace.ops) == 0 else False


def labelled_parts(trace: Trace, *, in_steps: bool = False) -> pd.DataFrame:
    """The labels of the training loop on training threads, in steps alone or anywhere.

    Other loops may compute the loss inside a part called forward: the time then belongs to the outer part.
    """
    labels = trace.labels
    wanted = labels["name"].isin(HOST_PARTS).to_numpy() & on_training(trace, labels)
    wanted &= labels["step"].notna().to_numpy() | (not in_steps)
    parts: pd.DataFrame = labels[wanted & ~has_ancestor(row_numbers(labels["parent"]), wanted)]
    return parts


def unlabelled_parts(trace: Trace) -> list[tuple[int, int, str]]:
    """Start, end and name of every `data`, `backward` and `optimizer` part on the training threads.

    A backward pass is the span of its operators between two other parts, or between two steps.
    """
    labels = trace.labels
    ops = trace.ops
    labels = labels[on_training(trace, labels)]
    spans = [
        (int(ts), int(ts + dur), phase)
        for ts, dur, name in zip(labels["ts"], labels["dur"], labels["name"], strict=True)
        for phase, label in _LABELS.items()
        if label.match(str(name))
    ]
    backward = ops[ops["backward"].to_numpy(dtype=bool)]
    cuts = np.array(sorted({*(start for start, *_ in spans), *trace.steps["ts"]}), dtype=np.int64)
    piece = np.searchsorted(cuts, backward["ts"].to_numpy(), side="right")
    whole = pd.DataFrame({"piece": piece, "start": backward["ts"], "end": backward["ts"] + backward["dur"]})
    hulls = whole.groupby("piece").agg(start=("start", "min"), end=("end", "max"))
    spans += [(int(a), int(b), "backward") for a, b in zip(hulls["start"], hulls["end"], strict=True)]
    return spans


@once
def label_of_kernels(trace: Trace) -> Ints:
    """Row of the innermost label that each activity was launched in, steps aside; -1 for none."""
    innermost, *of_step_threads = _around_launches(trace)
    for on_behalf in of_step_threads:
        innermost = np.where(innermost < 0, on_behalf, innermost)
    labels: Ints = _without_marks(trace)[innermost]
    return labels


def _work_in_labels(trace: Trace, label: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Pairs `(label, activity)` of the work launched in each label or in one inside it, steps aside; each pair once.

    Labels are numbers, one for each name. The pairs come in parts, all of a label in one of them: nested labels hold
    the same work again and again, so that all pairs at once would need memory by labels times activities.

    Args:
        trace: the trace.
        label: the number of each row of `trace.labels`, or -1; and -1 at the end.
    """
    kernels: list[Ints] = []
    holders: list[Ints] = []
    # Work of the backward pass belongs to its own thread's label and to the one that the pass runs for.
    for around in _around_launches(trace):
        holder = _without_marks(trace)[around]
        kernel = np.flatnonzero((holder >= 0) & (trace.kernels["device"] == trace.device).to_numpy())
        kernels.append(kernel)
        holders.append(holder[kernel])
    kernel, holder = np.concatenate(kernels), np.concatenate(holders)
    above = _without_marks(trace)[np.append(row_numbers(trace.labels["parent"]), -1)]
    place, after = _places(above[:-1], np.flatnonzero(label[:-1] >= 0))
    order = np.argsort(place[holder], kind="stable")
    kernel = kernel[order]
    launched = launched_at(trace)[kernel]
    places = place[holder][order]
    # What a label holds, itself or in one inside it, stands in one piece.
    rows = np.flatnonzero(label[:-1] >= 0)
    rows = rows[np.argsort(label[rows], kind="stable")]
    first, last = np.searchsorted(places, place[rows]), np.searchsorted(places, after[rows])
    end = start_end(trace.labels)[1]
    total = max(len(trace.kernels), 1)
    held = np.empty(0, dtype=np.int64)
    part = np.cumsum(last - first) // _MOST_PAIRS
    cuts = [0, *(np.flatnonzero(np.diff(part)) + 1), len(rows)]
    for begin, stop in pairwise(cuts):
        sizes = last[begin:stop] - first[begin:stop]
        row = np.repeat(rows[begin:stop], sizes)
        at = np.arange(len(row)) + np.repeat(first[begin:stop] - np.cumsum(sizes) + sizes, sizes)
        # By time: of labels that cross, the later one has the earlier one as its parent even after that has ended.
        inside = launched[at] < end[row]
        # With a label inside itself, each activity counts once.
        held = np.unique(np.append(held, label[row[inside]] * total + kernel[at[inside]]))
        # The last label of a part can go on in the next one.
        goes_on = stop < len(rows) and label[rows[stop]] == label[rows[stop - 1]]
        done = np.searchsorted(held, label[rows[stop - 1]] * total) if goes_on else len(held)
        yield np.divmod(held[:done], total)
        held = held[done:]


def _places(above: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """The place of each row in an order where all inside a row follow it, and the place after the last of them.

    Args:
        above: the row that each row is in, -1 for none; it comes before the row.
        rows: the rows that count, in order.
    """
    holders = above.tolist()
    counted = rows.tolist()
    inside = [0] * (len(holders) + 1)  # the last one stands for all
    for row in reversed(counted):
        inside[row] += 1
        inside[holders[row]] += inside[row]
    place = [0] * len(holders)
    free = [0] * (len(holders) + 1)
    for row in counted:
        holder = holders[row]
        place[row] = free[holder]
        free[holder] += inside[row]
        free[row] = place[row] + 1
    first = np.array(place, dtype=np.int64)
    return first, first + np.array(inside[:-1], dtype=np.int64)


@once
def _around_launches(trace: Trace) -> list[Ints]:
    """For each activity the innermost label around its launch, -1 for none.

    The first array is of labels on the launching thread. One more for each thread that marks steps follows: it holds
    that thread's label at the time of the launch, for work that another training thread launched.
    """
    labels = trace.labels
    launch = row_numbers(trace.kernels["launch"])
    time = take(trace.launches["ts"].to_numpy(), launch)
    thread = take(trace.launches["thread"].to_numpy(), launch)
    nesting = (labels["thread"].to_numpy(), *start_end(labels))
    around = [intervals.enclosing(*nesting, thread, time)]
    training = take(trace.threads["training"].to_numpy(dtype=np.int64), thread) == 1
    for marking in pd.unique(trace.steps["thread"]):
        on_others = np.flatnonzero(training & (thread != marking))
        on_behalf = np.full(len(launch), -1, dtype=np.int64)
        on_behalf[on_others] = intervals.enclosing(
            *nesting, np.full(len(on_others), marking, dtype=np.int64), time[on_others]
        )
        around.append(on_behalf)
    return around


@table("label_times", Label)
@once
def label_times(trace: Trace) -> pd.DataFrame:
    """Each label with its time on host and GPU, the most host time first (table `label_times`)."""
    labels = trace.labels
    label_rows = _without_marks(trace)
    rows = np.flatnonzero(label_rows[:-1] == np.arange(len(labels)))
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


#: How many labels summary.json lists; the table `label_times` has all.
MOST_LABELS: Final = 100


@part("labels")
def most_labels(trace: Trace) -> tuple[Label, ...]:
    """The first rows of `label_times`, for summary.json."""
    return rows(label_times(trace).head(MOST_LABELS), Label)


@once
def _without_marks(trace: Trace) -> Ints:
    """For each label its row, or for a step's mark the nearest other one around it; -1 at the end, for -1."""
    labels = trace.labels
    return np.append(nearest(row_numbers(labels["parent"]), ~marks_steps(labels)), -1)


def _host_times(trace: Trace, rows: Ints, label: Ints, count: int) -> dict[str, Ints]:
    labels = trace.labels
    ts, end = start_end(labels)
    thread = labels["thread"].to_numpy()
    threads = len(trace.threads)
    # Only the pairs of label and thread that occur: all of them would be far more than there are events.
    pairs, pair = np.unique(label[rows] * threads + thread[rows], return_inverse=True)
    by_thread = intervals.measure_by_group(pair, ts[rows], end[rows], len(pairs))
    host_ns = np.zeros(count, dtype=np.int64)
    np.add.at(host_ns, pairs // max(threads, 1), by_thread)
    # Time of inner labels is subtracted from the one right around them.
    holder = _without_marks(trace)[row_numbers(labels["parent"])][rows]
    inner = rows[holder >= 0]
    holder = holder[holder >= 0]
    within = intervals.measure_by_group(
        holder, np.maximum(ts[inner], ts[holder]), np.minimum(end[inner], end[holder]), len(labels)
    )
    self_ns = np.zeros(count, dtype=np.int64)
    np.add.at(self_ns, label[rows], (end - ts - within)[rows])
    return {"host_ns": host_ns, "host_self_ns": self_ns}


def _device_times(trace: Trace, label: Ints, count: int) -> dict[str, Any]:
    device = trace.device
    names = ("kernels", "device_ns", "device_self_ns")
    if not launches_measured(trace):
        return dict.fromkeys(names, unmeasured(count))
    holder = label_of_kernels(trace)
    kernel = np.flatnonzero((holder >= 0) & (trace.kernels["device"] == device).to_numpy())
    holder = holder[kernel]
    start, end = start_end(trace.kernels)
    self_ns = intervals.measure_by_group(label[holder], start[kernel], end[kernel], count)
    kernels = np.zeros(count, dtype=np.int64)
    inclusive = np.zeros(count, dtype=np.int64)
    for belongs, kernel in _work_in_labels(trace, label):
        kernels += np.bincount(belongs, minlength=count)
        inclusive += intervals.measure_by_group(belongs, start[kernel], end[kernel], count)
    return dict(zip(names, (kernels, inclusive, self_ns), strict=True))
