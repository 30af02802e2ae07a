"""How long the labelled sections of a step took, on the host and on the GPU."""

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.annotations import work_in_labels
from steptrace.analysis.common.launches import launched_at
from steptrace.intervals import Ints
from steptrace.trace.columns import marks_steps, row_numbers, start_end
from steptrace.trace.model import Trace, on_training


def section_times(trace: Trace, device: int | None) -> pd.DataFrame:
    """One row per step and label: `step`, `label`, `count`, `host_ns`, `device_ns`.

    Labels are the program's `record_function` labels on training threads. `host_ns` adds the lengths of a label's
    sections; of nested ones with the same label only the outer counts. `device_ns` is the time the GPU was busy with
    work launched inside them as `steptrace.analysis.common.annotations` has it: on their own thread, or, of one on a
    thread that marks steps, by any training thread; so `backward` owns what the autograd thread launched meanwhile.
    Null without a GPU.
    """
    rows = _sections(trace)
    groups = rows.groupby(["step", "label"], sort=True)
    table = groups.agg(first_ts=("ts", "min"), count=("ts", "size"), host_ns=("dur", "sum")).reset_index()
    group: Ints = np.asarray(groups.ngroup(), dtype=np.int64)
    device_ns = [pd.NA] * len(table) if device is None else _busy_ns(trace, device, rows, group)
    table = table.assign(device_ns=pd.array(device_ns, dtype="Int64"))
    table = table.sort_values(["step", "first_ts", "label"], kind="stable").reset_index(drop=True)
    return table.drop(columns="first_ts")


def section_medians(times: pd.DataFrame, steps: int) -> pd.DataFrame:
    """The sections of `section_times` per step: medians over all steps, a step without the label counting as 0.

    Returns `label`, `count_per_step`, `host_ns_per_step`, `device_ns_per_step` in the order of the first step.
    """
    rows = []
    for label in dict.fromkeys(times["label"]):
        of_label = times[times["label"] == label]
        absent = np.zeros(steps - len(of_label))
        measured = of_label["device_ns"].notna().all()
        rows.append(
            {
                "label": label,
                "count_per_step": float(np.median(np.append(of_label["count"], absent))),
                "host_ns_per_step": round(np.median(np.append(of_label["host_ns"], absent))),
                "device_ns_per_step": round(np.median(np.append(of_label["device_ns"].astype("float64"), absent)))
                if measured
                else None,
            }
        )
    return pd.DataFrame(rows, columns=["label", "count_per_step", "host_ns_per_step", "device_ns_per_step"])


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
    found = labels.loc[chosen, ["ts", "dur"]]
    return found.assign(step=row_numbers(labels["step"])[chosen], label=name[chosen])


def _busy_ns(trace: Trace, device: int, rows: pd.DataFrame, group: Ints) -> Ints:
    """For each group of sections the time the GPU was busy with what was launched in them."""
    of = np.full(len(trace.annotations), -1, dtype=np.int64)
    of[rows.index] = group
    label, kernel = work_in_labels(trace, device)
    # By time: of labels that cross, the later has the earlier around it also when that is over.
    within = (of[label] >= 0) & (launched_at(trace)[kernel] < start_end(trace.annotations)[1][label])
    (start, end), kernel = start_end(trace.kernels), kernel[within]
    return intervals.measure_by_group(of[label[within]], start[kernel], end[kernel], int(group.max(initial=-1)) + 1)
