"""What a rank spends on all-reduces, each instant counted once: on its GPU, or on the host where that reduces.

`measured` is the union of the all-reduces' spans, waiting for other ranks included; `exposed` is what of it no
computation hid: no compute kernel on any stream of the GPU, or on a CPU no operator on a thread that does training
work (None where the trace holds no operators). With steps in the trace only what they launched counts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.busy import activity
from steptrace.analysis.communication.collectives import collective_times
from steptrace.analysis.communication.host_collectives import host_collectives, host_compute
from steptrace.intervals import Spans
from steptrace.trace.columns import row_numbers
from steptrace.trace.model import Trace, once

ALL_REDUCE = "all_reduce"
_BY_STEP = ["index", "count", "bytes", "measured_ns", "exposed_ns"]


@dataclass(frozen=True)
class AllReduce:
    """The all-reduces of a trace. `source` is `gpu` or `host`; `bytes` None unless said for all of them.

    `steps` is the number of the trace's steps, None if it has none; then the figures are over the whole trace.
    """

    source: str
    count: int
    bytes: int | None
    measured_ns: int
    exposed_ns: int | None
    steps: int | None

    @property
    def overlap(self) -> float | None:
        """The share of the measured time that computation hid, 0 to 1; None where that is not known."""
        if self.exposed_ns is None:
            return None
        return 1 - self.exposed_ns / self.measured_ns if self.measured_ns else None


@once
def all_reduce(trace: Trace, device: int | None) -> tuple[AllReduce | None, pd.DataFrame]:
    """The all-reduces of a trace, and by step: `index`, `count`, `bytes`, `measured_ns`, `exposed_ns`.

    Those of GPU `device`, or where it has none those of the host. None, and no rows, without any.
    """
    for source, times, compute in _sources(trace, device):
        found = times[(times["collective"] == ALL_REDUCE).to_numpy()]
        if len(trace.steps):
            found = found[found["step"].notna().to_numpy()]
        if len(found):
            figures = {"count": len(found), **_figures(found, compute), "steps": len(trace.steps) or None}
            return AllReduce(source, **figures), _by_step(found, compute, trace)
    return None, pd.DataFrame(columns=_BY_STEP)


def _sources(trace: Trace, device: int | None) -> Iterator[tuple[str, pd.DataFrame, Spans | None]]:
    if device is None:
        yield "host", host_collectives(trace), host_compute(trace)
        return
    compute = activity(trace, device).compute
    yield "gpu", collective_times(trace, device), compute
    # gloo with GPUs: operators there only launch, so that nothing but kernels hides what the host reduces.
    yield "host", host_collectives(trace), compute


def _by_step(found: pd.DataFrame, compute: Spans | None, trace: Trace) -> pd.DataFrame:
    step = row_numbers(found["step"])
    rows = [
        {"index": int(index), "count": int((step == k).sum()), **_figures(found[step == k], compute)}
        for k, index in enumerate(trace.steps["index"])
    ]
    table = pd.DataFrame(rows, columns=_BY_STEP)
    return table.astype({"bytes": "Int64", "exposed_ns": "Int64"})


def _figures(found: pd.DataFrame, compute: Spans | None) -> dict[str, Any]:
    start = found["ts"].to_numpy(dtype=np.int64)
    spans = intervals.union(intervals.spans(start, start + found["dur_ns"].to_numpy(dtype=np.int64)))
    return {
        "bytes": int(found["bytes"].sum()) if found["bytes"].notna().all() else None,
        "measured_ns": intervals.measure(spans),
        "exposed_ns": None if compute is None else intervals.measure(intervals.subtract(spans, compute)),
    }
