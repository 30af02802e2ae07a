"""How long a GPU was busy, with what, and what of it nothing else hid.

Per device, over all its streams. Of the classes compute, comm and memory each gets the union of its activities, so
that work on several streams at once counts once. Exposed comm is comm without compute; exposed memory is memory
without compute and comm. Then compute + exposed comm + exposed memory + idle is the span, exactly.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from steptrace import intervals
from steptrace.documents.gpu_time import GpuTime
from steptrace.intervals import Ints, Spans
from steptrace.trace.columns import spans_of, start_end
from steptrace.trace.model import Trace, once


@dataclass(frozen=True)
class Activity:
    """The busy spans of one GPU, in normal form: every class, and what of it is exposed. `count` is the activities."""

    count: int
    busy: Spans
    compute: Spans
    comm: Spans
    memory: Spans
    exposed_comm: Spans
    exposed_memory: Spans
    overlap: Spans

    @property
    def span(self) -> tuple[int, int]:
        """First start to last end of the GPU's work; (0, 0) without any."""
        return (int(self.busy[0, 0]), int(self.busy[-1, 1])) if len(self.busy) else (0, 0)


@once
def activity(trace: Trace, device: int) -> Activity:
    """The busy spans of GPU `device` by class."""
    kernels = trace.kernels[["ts", "dur", "kind"]][(trace.kernels["device"] == device).to_numpy()]
    every = spans_of(kernels)
    kind = kernels["kind"].to_numpy(dtype=object)
    compute, comm, memory = (intervals.union(every[kind == name]) for name in ("compute", "comm", "memory"))
    hiding = intervals.union(compute, comm)
    return Activity(
        count=len(kernels),
        busy=intervals.union(every),
        compute=compute,
        comm=comm,
        memory=memory,
        exposed_comm=intervals.subtract(comm, compute),
        exposed_memory=intervals.subtract(memory, hiding),
        overlap=intervals.intersect(comm, compute),
    )


def gpu_time(trace: Trace, device: int) -> GpuTime:
    """Where the GPU's time went over the whole trace: from its first activity's start to its last one's end."""
    gpu = activity(trace, device)
    start, end = gpu.span
    names = ("busy", "compute", "comm", "memory", "exposed_comm", "exposed_memory")
    ns = {f"{name}_ns": intervals.measure(getattr(gpu, name)) for name in names}
    overlap_ns = intervals.measure(gpu.overlap)
    return GpuTime(
        activities=gpu.count,
        span_ns=end - start,
        idle_ns=end - start - ns["busy_ns"],
        **ns,
        comm_compute_overlap_ns=overlap_ns,
        overlap_pct=100.0 * overlap_ns / ns["comm_ns"] if ns["comm_ns"] else None,
    )


def time_within(gpu: Activity, starts: Ints, ends: Ints) -> pd.DataFrame:
    """Where the GPU's time went in each window `[starts[i], ends[i])`; windows may overlap.

    Returns one row per window, in ns: `dur`, `busy_ns`, `compute_ns`, `exposed_comm_ns`, `exposed_memory_ns`,
    `idle_ns`; compute, both exposed ones and idle add up to `dur` exactly.
    """
    dur = np.asarray(ends, dtype=np.int64) - np.asarray(starts, dtype=np.int64)
    names = ("busy", "compute", "exposed_comm", "exposed_memory")
    ns = {f"{name}_ns": intervals.measure_within(getattr(gpu, name), starts, ends) for name in names}
    return pd.DataFrame({"dur": dur, **ns, "idle_ns": dur - ns["busy_ns"]})


def sm_weighted_ns(trace: Trace, device: int, starts: Ints, ends: Ints) -> NDArray[np.float64] | None:
    """How much of each window's time the GPU's multiprocessors had a block to run, in ns; windows may overlap.

    Weighted by the share of them that had. None if the blocks of some kernel are unknown.
    """
    found = _blocks_in_time(trace, device)
    if found is None:
        return None
    edges, load = found
    until = np.append(0.0, np.cumsum(load * np.diff(edges)))
    within: NDArray[np.float64] = np.interp(ends, edges, until) - np.interp(starts, edges, until)
    return within


def _blocks_in_time(trace: Trace, device: int) -> tuple[Ints, NDArray[np.float64]] | None:
    """Blocks per multiprocessor of all running kernels, capped at 1, between each two neighbouring instants.

    Copies and sets run on none. None without kernels, or if the blocks of one are unknown.
    """
    kernels = trace.kernels
    chosen = ((kernels["device"] == device) & (kernels["category"] == "kernel")).to_numpy()
    blocks = kernels["blocks_per_sm"].to_numpy(dtype=np.float64)[chosen]
    if len(blocks) == 0 or np.isnan(blocks).any():
        return None
    start, end = start_end(kernels)
    times = np.concatenate([start[chosen], end[chosen]])
    change = np.concatenate([blocks, -blocks])
    edges, place = np.unique(times, return_inverse=True)
    # Rounded sums: what is added and taken away again must leave exactly nothing.
    return edges, np.minimum(np.round(np.cumsum(np.bincount(place, weights=change)), 9), 1.0)[:-1]
