"""A rank's time in all-reduces, each instant counted once: on its GPU, or on the host if that reduces.

`measured` is the union of the all-reduces' spans, waiting for other ranks included; `exposed` is the part of it without
a compute kernel on any stream of the GPU, or on a CPU without an operator on a training thread (None if the trace holds
no operators). In a trace with steps only all-reduces launched in steps count.

`reduce_passes` are redundant all-reduces. With gradient accumulation, gradients are needed on all ranks once, at the
end of the step; without `no_sync`, DistributedDataParallel reduces them in every pass. A pass begins at
DistributedDataParallel's label around its forward pass, and has the all-reduces launched from there to the next one.
"""

from collections.abc import Iterator
from typing import Any, Final, Literal

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.busy import activity
from steptrace.analysis.communication.collectives import gpu_collectives, host_collectives, host_compute
from steptrace.documents.communication import AllReduce, ReducePasses, Redundant
from steptrace.intervals import Ints, Spans
from steptrace.trace.columns import row_numbers, take
from steptrace.trace.model import Trace, launched_at

ALL_REDUCE = "all_reduce"
FORWARD: Final = "DistributedDataParallel.forward"
#: A pass reduces gradients if it reduces at least this share of the bytes of its step's last pass.
_GRADIENTS: Final = 0.5


def all_reduce(trace: Trace) -> AllReduce | None:
    """The all-reduces of the analysed GPU, or without any there those of the host; None without any."""
    chosen = all_reduces(trace)
    if chosen is None:
        return None
    source, reduces, compute = chosen
    figures = figures_of(reduces, compute)
    measured, exposed = figures["measured_ns"], figures["exposed_ns"]
    overlap = 1 - exposed / measured if measured and exposed is not None else None
    return AllReduce(source=source, count=len(reduces), **figures, overlap=overlap)


def all_reduces(trace: Trace) -> tuple[Literal["gpu", "host"], pd.DataFrame, Spans | None] | None:
    """Where they ran, those that count, and the spans that hide them; None without any."""
    for source, times, compute in _sources(trace):
        reduces = times[(times["collective"] == ALL_REDUCE).to_numpy()]
        if len(trace.steps):
            reduces = reduces[reduces["step"].notna().to_numpy()]
        if len(reduces):
            return source, reduces, compute
    return None


def _sources(trace: Trace) -> Iterator[tuple[Literal["gpu", "host"], pd.DataFrame, Spans | None]]:
    if trace.device is None:
        yield "host", host_collectives(trace), host_compute(trace)
        return
    compute = activity(trace).compute
    yield "gpu", gpu_collectives(trace), compute
    # gloo with GPUs: operators only launch there, so only kernels hide the host's all-reduces.
    yield "host", host_collectives(trace), compute


def figures_of(reduces: pd.DataFrame, compute: Spans | None) -> dict[str, Any]:
    """Bytes (None unless all have them), and the time with any all-reduce under way, in all and exposed."""
    start = reduces["ts"].to_numpy(dtype=np.int64)
    spans = intervals.union(intervals.spans(start, start + reduces["dur_ns"].to_numpy(dtype=np.int64)))
    return {
        "bytes": int(reduces["bytes"].sum()) if reduces["bytes"].notna().all() else None,
        "measured_ns": intervals.measure(spans),
        "exposed_ns": None if compute is None else intervals.measure(intervals.subtract(spans, compute)),
    }


def reduce_passes(trace: Trace) -> ReducePasses | None:
    """The redundant all-reduces of a trace's steps; None without steps, labelled passes, or all-reduces."""
    labels = trace.labels
    forward = labels[((labels["name"] == FORWARD) & labels["step"].notna()).to_numpy(dtype=bool)]
    chosen = all_reduces(trace) if len(forward) else None
    if len(trace.steps) == 0 or chosen is None:
        return None
    reduces = chosen[1].assign(asked=_asked(trace, chosen[1]))
    step, begun = row_numbers(forward["step"]), forward["ts"].to_numpy()
    per_step = [
        _of_step(reduces[(reduces["step"] == k).to_numpy()], np.sort(begun[step == k])) for k in range(len(trace.steps))
    ]
    redundant = pd.concat(per_step)
    figures = figures_of(redundant, None)
    return ReducePasses(
        passes_per_step=len(forward) / len(trace.steps),
        redundant=Redundant(count=len(redundant), bytes=figures["bytes"], measured_ns=figures["measured_ns"]),
    )


def _of_step(reduces: pd.DataFrame, begun: Ints) -> pd.DataFrame:
    """The all-reduces of one step in passes that reduce gradients, the last pass left out."""
    of_pass = np.searchsorted(begun, reduces["asked"].to_numpy(dtype=np.int64), side="right") - 1
    last = len(begun) - 1
    has_bytes = reduces["bytes"].notna().all()
    weight = reduces["bytes"].to_numpy(dtype=np.float64) if has_bytes else np.ones(len(reduces))
    sums = np.bincount(of_pass[of_pass >= 0], weight[of_pass >= 0], minlength=max(last + 1, 1))
    wanted = (of_pass >= 0) & (of_pass < last) & (sums[last] > 0)
    wanted &= sums[np.maximum(of_pass, 0)] >= _GRADIENTS * sums[last]
    redundant: pd.DataFrame = reduces[wanted]
    return redundant


def _asked(trace: Trace, reduces: pd.DataFrame) -> Ints:
    """When the host launched each all-reduce, or its own start."""
    launched = take(launched_at(trace), row_numbers(reduces["kernel"]))
    return np.where(launched >= 0, launched, reduces["ts"])
