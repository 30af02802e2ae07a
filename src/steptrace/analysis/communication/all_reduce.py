"""A rank's time in all-reduces, each instant counted once: on its GPU, or on the host if that reduces.

`measured` is the union of the all-reduces' spans, waiting for other ranks included; `exposed` is the part of it without
a compute kernel on any stream of the GPU, or on a CPU without an operator on a training thread (None if the trace holds
no operators). In a trace with steps only all-reduces launched in steps count.
"""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.busy import activity
from steptrace.analysis.communication.collectives import gpu_collectives, host_collectives, host_compute
from steptrace.documents.communication import AllReduce
from steptrace.intervals import Spans
from steptrace.trace.model import Trace

ALL_REDUCE = "all_reduce"


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
