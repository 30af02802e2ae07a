"""Each GPU's time by part: over its whole span, in each step and over all steps, as sums over the division.

Compute + exposed comm + exposed memory + idle is the span, exactly: exposed comm is comm without compute, exposed
memory is memory without compute and comm. comm and memory alone are their unions, hidden or not.
"""

from typing import Any

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.busy import activity
from steptrace.analysis.common.division import BUSY, gpu_division
from steptrace.documents.steps import GpuTime
from steptrace.intervals import Ints
from steptrace.trace.columns import start_end, unmeasured
from steptrace.trace.model import Trace, once


def exclusive_times(trace: Trace, starts: Ints, ends: Ints) -> dict[str, Ints]:
    """A GPU's time in each window `[starts[i], ends[i])` of its steps or span, ns; windows may overlap.

    Returns `busy_ns`, `compute_ns`, `exposed_comm_ns`, `exposed_memory_ns` and `idle_ns`.
    """
    parts = gpu_division(trace).within(starts, ends)
    busy = sum((parts[name] for name in BUSY), start=np.zeros(len(starts), dtype=np.int64))
    idle = sum((ns for name, ns in parts.items() if name not in BUSY), start=np.zeros(len(starts), dtype=np.int64))
    names = ("compute", "exposed_comm", "exposed_memory")
    return {"busy_ns": busy, **{f"{name}_ns": parts[name] for name in names}, "idle_ns": idle}


def gpu_time(trace: Trace) -> GpuTime:
    """The GPU's time by part from its first activity's start to its last one's end; null without GPU work."""
    if trace.device is None:
        unmeasured_times: dict[str, Any] = dict.fromkeys(GpuTime.__struct_fields__)
        return GpuTime(**(unmeasured_times | {"activities": 0}))
    gpu = activity(trace)
    start, end = gpu.span
    parts = exclusive_times(trace, np.array([start]), np.array([end]))
    comm, both = intervals.measure(gpu.comm), intervals.measure(intervals.intersect(gpu.comm, gpu.compute))
    return GpuTime(
        activities=gpu.count,
        span_ns=end - start,
        **{name: int(ns[0]) for name, ns in parts.items()},
        comm_ns=comm,
        memory_ns=intervals.measure(gpu.memory),
        comm_compute_overlap_ns=both,
        overlap_pct=100.0 * both / comm if comm else None,
    )


@once
def step_times(trace: Trace) -> pd.DataFrame:
    """One row per step: `index`, `start_ns`, `dur_ns`, `host_dur_ns`, and the GPU's time in it.

    A step is the host's `ProfilerStep#N` label, extended to the end of the last GPU work launched in it; so steps
    can overlap. The GPU's columns (`exclusive_times`) hold what ran in that time, whichever step launched it; null
    without a GPU.
    """
    steps = trace.steps
    table = steps[["index", "ts", "dur", "host_dur"]].set_axis(["index", "start_ns", "dur_ns", "host_dur_ns"], axis=1)
    if trace.device is None:
        columns = ("busy_ns", "compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns")
        return table.assign(**dict.fromkeys(columns, unmeasured(len(table))))
    return table.assign(**exclusive_times(trace, *start_end(steps)))
