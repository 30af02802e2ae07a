"""Each GPU's time by part, over its whole span and in each step, as sums over the division; and the kinds of steps.

Compute + exposed comm + exposed memory + idle is the span, exactly: exposed comm is comm without compute, exposed
memory is memory without compute and comm. comm and memory alone are their unions, hidden or not.
"""

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.division import BUSY, activity, gpu_division
from steptrace.documents.run import Unprofiled
from steptrace.documents.steps import GpuTime, StepKind
from steptrace.engine.kinds import Kind, kind_after, kinds_of, nearest, per_step
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
        return GpuTime(**(unmeasured_times | {"activities": len(trace.kernels)}))
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


def step_kinds(
    unprofiled: Unprofiled | None, profiled_ns: Sequence[int], syncs: Sequence[int] | None, *, left_out: int = 0
) -> tuple[StepKind, ...]:
    """Usual and other steps; none where all are alike.

    Args:
        unprofiled: the times of the steps before the trace, None where none were timed.
        profiled_ns: the times of the steps in it.
        syncs: how many each of these made; None where that was not measured.
        left_out: how many profiled steps before them were left out.
    """
    kinds = () if unprofiled is None else kinds_of(unprofiled.step_ns, unprofiled.operators)
    if unprofiled is None or not kinds[1:]:
        return ()
    counts: tuple[float | None, ...] = (None,) * len(kinds)
    if syncs is not None:
        passed = unprofiled.until_recorded
        of_kind = nearest(kinds, profiled_ns)
        if passed is not None and all(kind.every is not None for kind in kinds[1:]):
            of_kind = [kind_after(kinds, passed + left_out + number) for number in range(len(profiled_ns))]
        counts = per_step(kinds, of_kind, syncs)
    return tuple(
        StepKind(name, kind.steps, kind.of, round(kind.typical), kind.share, _comes(kind), count)
        for name, kind, count in zip(_names(len(kinds)), kinds, counts, strict=True)
    )


def _names(kinds: int) -> list[str]:
    return ["usual", "other", *(f"other {number}" for number in range(2, kinds))][:kinds]


def _comes(kind: Kind) -> str:
    """How often steps of a kind come."""
    if kind.every is not None:
        return f"every {kind.every} steps"
    if 2 * kind.steps >= kind.of:
        return "mostly"
    return "once" if kind.steps == 1 else "irregularly"


def mean_ns(unprofiled: Unprofiled | None) -> int | None:
    """The mean time of the steps before the trace; None where none were timed."""
    return None if unprofiled is None or not unprofiled.step_ns else round(statistics.mean(unprofiled.step_ns))
