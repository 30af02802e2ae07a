"""How long the labelled sections of a step took, on the host and on the GPU."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.intervals import Ints
from steptrace.trace.columns import marks_steps, row_numbers
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
    table = table.sort_values(["step", "first_ts", "label"], kind="stable").reset_index(drop=True)
    if device is None:
        device_ns = pd.array([pd.NA] * len(table), dtype="Int64")
    else:
        sections = [groups.indices[step, label] for step, label in zip(table["step"], table["label"], strict=True)]
        device_ns = pd.array(_busy_ns(trace, device, rows, sections), dtype="Int64")
    return table.assign(device_ns=device_ns).drop(columns="first_ts")


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
    """The labelled sections in steps on training threads, without those inside one of the same label."""
    labels = trace.annotations
    name = labels["name"].to_numpy(dtype=object)
    inside_same = np.zeros(len(labels), dtype=bool)
    parent = row_numbers(labels["parent"])
    above = parent.copy()
    while (open_ := above >= 0).any():
        inside_same[open_] |= name[open_] == name[above[open_]]
        above[open_] = parent[above[open_]]
    chosen = ~inside_same & ~marks_steps(labels) & labels["step"].notna().to_numpy() & on_training(trace, labels)
    return pd.DataFrame(
        {
            "step": row_numbers(labels["step"])[chosen],
            "label": name[chosen],
            "ts": labels["ts"].to_numpy()[chosen],
            "dur": labels["dur"].to_numpy()[chosen],
            "thread": labels["thread"].to_numpy()[chosen],
        }
    )


def _work(trace: Trace, device: int) -> pd.DataFrame:
    """The GPU work that training threads launched, by time of launch."""
    kernels = trace.kernels[((trace.kernels["device"] == device) & trace.kernels["launch"].notna()).to_numpy()]
    launch = row_numbers(kernels["launch"])
    thread = trace.launches["thread"].to_numpy()[launch]
    work = pd.DataFrame(
        {
            "launched": trace.launches["ts"].to_numpy()[launch],
            "thread": thread,
            "start": kernels["ts"].to_numpy(),
            "end": (kernels["ts"] + kernels["dur"]).to_numpy(),
        }
    )
    training = trace.threads["training"].to_numpy(dtype=bool)[thread]
    by_training: pd.DataFrame = work.loc[training].sort_values("launched", kind="stable")
    return by_training


def _busy_ns(trace: Trace, device: int, rows: pd.DataFrame, sections: Sequence[Any]) -> Ints:
    """For each of some sets of rows the time the GPU was busy with what was launched in them, on their own thread or
    on behalf of it."""
    work, marking = _work(trace, device), trace.steps["thread"].unique()
    launched, thread, start, end = (work[name].to_numpy() for name in ("launched", "thread", "start", "end"))
    own, ts = rows["thread"].to_numpy(), rows["ts"].to_numpy()
    first = np.searchsorted(launched, ts, side="left")
    last = np.searchsorted(launched, ts + rows["dur"].to_numpy(), side="left")
    of_all = np.isin(own, marking)
    measured = []
    for section in sections:
        low, high = first[section].min(), last[section].max()
        chosen = np.zeros(high - low, dtype=bool)
        for row in section:
            a, b = first[row], last[row]
            chosen[a - low : b - low] |= of_all[row] | (thread[a:b] == own[row])
        spans = intervals.spans(start[low:high][chosen], end[low:high][chosen])
        measured.append(intervals.measure(intervals.union(spans)))
    return np.array(measured, dtype=np.int64)
