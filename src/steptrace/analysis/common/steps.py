"""The training steps of a trace, and where the GPU's time went in each."""

import numpy as np
import pandas as pd

from steptrace import intervals, schema
from steptrace.analysis.common.busy import activity, time_within
from steptrace.documents.rows import TemporalRow, table_of
from steptrace.intervals import Ints
from steptrace.trace.columns import start_end
from steptrace.trace.model import Trace

TEMPORAL = table_of("temporal", TemporalRow, "device", "step")


def step_times(trace: Trace, device: int | None) -> pd.DataFrame:
    """One row per step: `index`, `start_ns`, `dur_ns`, `host_dur_ns`, and the GPU's time in it.

    A step is the host's `ProfilerStep#N` annotation, extended to the end of the last GPU work launched in it; so steps
    can overlap. The GPU's columns (`busy_ns`, `compute_ns`, `exposed_comm_ns`, `exposed_memory_ns`, `idle_ns`; the
    last four add up to `dur_ns`) hold what ran in that time, whichever step launched it; null without a GPU.
    """
    steps = trace.steps
    table = steps[["index", "ts", "dur", "host_dur"]].set_axis(["index", "start_ns", "dur_ns", "host_dur_ns"], axis=1)
    columns = ["busy_ns", "compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns"]
    if device is None:
        return table.assign(**{name: pd.array([pd.NA] * len(table), dtype="Int64") for name in columns})
    within = time_within(activity(trace, device), *start_end(steps))
    return table.assign(**{name: within[name] for name in columns})


def temporal_breakdown(trace: Trace) -> pd.DataFrame:
    """Where the time of each GPU went: over its whole span, and in each step (table `temporal`).

    A step's row holds what ran in its time, whichever step launched it. A GPU without work in a step is idle for all of
    it. Without a GPU the table is empty.
    """
    parts = [_breakdown(trace, device) for device in sorted(trace.devices)]
    table = pd.concat(parts, ignore_index=True) if parts else schema.empty(TEMPORAL)
    return schema.validate(table, TEMPORAL)


def _breakdown(trace: Trace, device: int) -> pd.DataFrame:
    gpu = activity(trace, device)
    steps = trace.steps
    start: Ints = np.append(gpu.span[0], steps["ts"].to_numpy())
    end: Ints = np.append(gpu.span[1], (steps["ts"] + steps["dur"]).to_numpy())
    within = time_within(gpu, start, end)
    whole = np.arange(len(start)) == 0
    index = np.append(0, steps["index"].to_numpy())
    return pd.DataFrame(
        {
            "rank": pd.array([trace.rank] * len(start), dtype="Int64"),
            "device": np.full(len(start), device, dtype=np.int64),
            "step": pd.arrays.IntegerArray(np.maximum(np.arange(len(start)) - 1, 0), whole),
            "index": pd.arrays.IntegerArray(index, whole.copy()),
            "start_ns": start,
            "span_ns": within["dur"],
            **within.drop(columns="dur"),
            "comm_ns": intervals.measure_within(gpu.comm, start, end),
            "memory_ns": intervals.measure_within(gpu.memory, start, end),
            "comm_compute_overlap_ns": intervals.measure_within(gpu.overlap, start, end),
        }
    )


def is_own_operator(name: str) -> bool:
    """Whether the name is that of an operator itself: it has a namespace, and is no wrapper of the autograd engine."""
    return "::" in name and not name.startswith("autograd::")
