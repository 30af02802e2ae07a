"""Each GPU's time by part, over its whole span and in each step, as sums over the division; and the kinds of steps.

Compute + exposed comm + exposed memory + idle is the span, exactly: exposed comm is comm without compute, exposed
memory is memory without compute and comm. comm and memory alone are their unions, hidden or not.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.activity import activity
from steptrace.analysis.common.division import BUSY, gpu_division, gpu_window
from steptrace.analysis.common.registry import part, table
from steptrace.documents.run import Unprofiled, capture_of
from steptrace.documents.steps import GpuTime, StepKind, StepTime
from steptrace.documents.table import rows
from steptrace.engine.kinds import Kind, kind_after, kinds_of, nearest, per_step
from steptrace.intervals import Ints
from steptrace.run_times import iqr_over_median
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


@part("gpu")
def gpu_time(trace: Trace) -> GpuTime:
    """The GPU's time by part from its first activity's start to its last one's end; null without GPU work."""
    if trace.device is None:
        unmeasured_times: dict[str, Any] = dict.fromkeys(GpuTime.__struct_fields__)
        return GpuTime(**(unmeasured_times | {"activities": len(trace.kernels)}))
    gpu = activity(trace)
    start, end = gpu.span
    parts = exclusive_times(trace, np.array([start]), np.array([end]))
    comm = intervals.measure(gpu.comm)
    both = intervals.measure(intervals.intersect(gpu.comm, gpu.compute))
    return GpuTime(
        activities=gpu.count,
        span_ns=end - start,
        **{name: int(ns[0]) for name, ns in parts.items()},
        comm_ns=comm,
        memory_ns=intervals.measure(gpu.memory),
        comm_compute_overlap_ns=both,
        overlap_pct=100.0 * both / comm if comm else None,
    )


@table("step_times", StepTime)
@once
def step_times(trace: Trace) -> pd.DataFrame:
    """One row per step: `index`, `start_ns`, `dur_ns`, `host_dur_ns`, `length_ns`, and the GPU's time in it.

    A step's span is the host's `ProfilerStep#N` label, extended to the end of the last GPU work launched in it; so
    spans can overlap. The lengths (`lengths_ns`) cannot. The GPU's columns (`exclusive_times`) hold what ran in the
    span, whichever step launched it; null without a GPU.
    """
    steps = trace.steps
    table = steps[["index", "ts", "dur", "host_dur"]].set_axis(["index", "start_ns", "dur_ns", "host_dur_ns"], axis=1)
    table["length_ns"] = np.array(lengths_ns(trace), dtype=np.int64)
    if trace.device is None:
        columns = ("busy_ns", "compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns")
        return table.assign(**dict.fromkeys(columns, unmeasured(len(table))))
    return table.assign(**exclusive_times(trace, *start_end(steps)))


@part("steps")
def each_step(trace: Trace) -> tuple[StepTime, ...]:
    """The rows of `step_times`, for summary.json."""
    return rows(step_times(trace), StepTime)


@once
def unprofiled_steps(trace: Trace) -> Unprofiled | None:
    """The steps before the trace, from the record beside it; None without one."""
    capture = capture_of(trace.path)
    return capture.unprofiled if capture else None


@once
def steps_alike(trace: Trace) -> "Alike":
    """The kinds of the steps before the trace, and the kinds of its own steps."""
    first_ns = int(trace.steps["ts"].iloc[0]) if len(trace.steps) else 0
    left_out = sum(step.start_ns < first_ns for step in trace.meta.records.left_out)
    return alike(unprofiled_steps(trace), lengths_ns(trace), left_out=left_out)


def lengths_ns(trace: Trace) -> list[int]:
    """The length of each step in ns; the lengths add up to the overview's window.

    On a GPU a step counts from the end of the work before it to the end of its own work, since the spans of steps
    overlap where the host runs ahead.
    """
    start, end = start_end(trace.steps)
    if trace.device is None or not len(start):
        return [int(ns) for ns in end - start]
    edges = np.maximum.accumulate(np.concatenate([[gpu_window(trace)[0]], end]))
    return [int(ns) for ns in np.diff(edges)]


@dataclass(frozen=True)
class Alike:
    """Profiled steps beside unprofiled ones of the same kind.

    Attributes:
        kinds: of the unprofiled steps, the usual ones first; one alone where all are alike, none where none was timed.
        profiled: how long each profiled step took, in ns.
        of_kind: the index of the kind of each.
    """

    kinds: tuple[Kind, ...] = ()
    profiled: tuple[int, ...] = ()
    of_kind: tuple[int, ...] = ()

    @property
    def ratio(self) -> float | None:
        """The median profiled step over the median unprofiled one, of the first kind that both hold; None without."""
        for number, kind in enumerate(self.kinds):
            of_this_kind = [
                ns for ns, step_kind in zip(self.profiled, self.of_kind, strict=True) if step_kind == number
            ]
            if of_this_kind and kind.typical:
                return statistics.median(of_this_kind) / kind.typical
        return None

    @property
    def unprofiled_ns(self) -> int | None:
        """The mean time of unprofiled steps of the same kinds as the profiled ones."""
        return round(statistics.mean(self.kinds[kind].typical for kind in self.of_kind)) if self.of_kind else None

    def mean(self, values: Sequence[float]) -> float | None:
        """The mean over all steps of a figure of each profiled one: kinds count as often as they come.

        None where no step of some kind was profiled.
        """
        means = []
        for number in range(len(self.kinds)):
            of_this_kind = [value for value, step_kind in zip(values, self.of_kind, strict=True) if step_kind == number]
            if not of_this_kind:
                return None
            means.append(self.kinds[number].steps * statistics.mean(of_this_kind))
        return sum(means) / sum(kind.steps for kind in self.kinds) if means else None


def alike(unprofiled: Unprofiled | None, profiled_ns: Sequence[int], *, left_out: int = 0) -> Alike:
    """The kinds of the unprofiled steps, and the kinds of the profiled ones.

    Args:
        unprofiled: the times of the steps before the trace, None where none were timed.
        profiled_ns: how long the steps in it took.
        left_out: how many profiled steps before them were left out.
    """
    kinds = () if unprofiled is None else kinds_of(unprofiled.step_ns, unprofiled.operators)
    if unprofiled is None or not kinds or not profiled_ns:
        return Alike(kinds)
    passed = unprofiled.until_recorded
    of_kind = nearest(kinds, profiled_ns)
    if passed is not None and all(kind.every is not None for kind in kinds[1:]):
        of_kind = [kind_after(kinds, passed + left_out + number) for number in range(len(profiled_ns))]
    return Alike(kinds, tuple(profiled_ns), tuple(of_kind))


def step_kinds(steps: Alike, syncs: Sequence[int] | None) -> tuple[StepKind, ...]:
    """Usual and other steps; none where all are alike. `syncs`: of each profiled step, None if not measured."""
    kinds = steps.kinds
    if not kinds[1:]:
        return ()
    counts = (None,) * len(kinds) if syncs is None else per_step(kinds, steps.of_kind, syncs)
    return tuple(
        StepKind(name, kind.steps, kind.of, round(kind.typical), kind.share, _comes(kind), count)
        for name, kind, count in zip(_names(len(kinds)), kinds, counts, strict=True)
    )


def _names(kinds: int) -> list[str]:
    return ["usual", "other", *(f"other {number}" for number in range(2, kinds))][:kinds]


def _comes(kind: Kind) -> str:
    """The rhythm in which steps of a kind come, in words."""
    if kind.every is not None:
        return f"every {kind.every} steps"
    if 2 * kind.steps >= kind.of:
        return "mostly"
    return "once" if kind.steps == 1 else "irregularly"


def mean_ns(unprofiled: Unprofiled | None) -> int | None:
    """The mean time of the steps before the trace; None where none were timed."""
    return None if unprofiled is None or not unprofiled.step_ns else round(statistics.mean(unprofiled.step_ns))


def spread(unprofiled: Unprofiled | None) -> float | None:
    """IQR/median of the steps before the trace; None where none were timed."""
    return None if unprofiled is None or not unprofiled.step_ns else iqr_over_median([np.array(unprofiled.step_ns)])
