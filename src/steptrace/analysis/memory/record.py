"""`memory`: the peak of each device's memory, the blocks live at the peak, and the free memory left."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pandas as pd

from steptrace.analysis.memory.measure import CATEGORIES, HOST, Held, Peak, memory_at_peak, memory_peaks
from steptrace.documents.memory import AtPeak, DeviceMemory
from steptrace.documents.run import RunMemory
from steptrace.documents.table import plain, rows
from steptrace.intervals import Ints
from steptrace.trace.model import Trace

#: Most origins, and most points of a curve, in summary.json.
MOST: Final = 25
POINTS: Final = 400
_KINDS: Final = {0: "cpu", 1: "cuda"}


def memory(trace: Trace) -> tuple[DeviceMemory, ...] | None:
    """One entry a device, the highest peak first; None where the profiler recorded no allocations."""
    held = _held(trace.memory_record)
    return tuple(_device(trace, peak, held) for peak in memory_peaks(trace, held)) or None


def downsample(values: Ints, most: int) -> Ints:
    """At most `most` positions of a series: of each stretch the first, the lowest, the highest and the last."""
    if len(values) <= most:
        return np.arange(len(values), dtype=np.int64)
    edges = np.linspace(0, len(values), most // 4 + 1).astype(np.int64)
    kept = [
        {a, b - 1, a + int(values[a:b].argmin()), a + int(values[a:b].argmax())}
        for a, b in pairwise(edges.tolist())
        if b > a
    ]
    return np.array(sorted(set().union(*kept)), dtype=np.int64)


def _device(trace: Trace, peak: Peak, held: Mapping[int, Held]) -> DeviceMemory:
    kind, lines, recorded = _KINDS.get(peak.kind, str(peak.kind)), trace.lines, trace.memory_record
    of_run = recorded if recorded is not None and recorded.device == kind else None
    at_peak = memory_at_peak(trace, peak, held.get(peak.kind), lines)
    sums = at_peak.groupby("category")["bytes"].sum()
    capacity, source = _capacity(trace, peak, of_run)
    taken = peak.allocated if peak.reserved is None else peak.reserved
    return DeviceMemory(
        device_type=kind,
        device=peak.device,
        peak_allocated_bytes=peak.allocated,
        peak_reserved_bytes=peak.reserved,
        peak_ts=peak.ts,
        before_bytes=peak.before,
        complete=peak.complete,
        counter_agrees=peak.agrees,
        capacity_bytes=capacity,
        capacity_source=source,
        headroom_bytes=capacity - taken if capacity is not None and peak.complete else None,
        fragmentation=None if of_run is None else of_run.fragmentation,
        by_category={name: int(sums.get(name, 0)) for name in CATEGORIES},
        at_peak=_origins(at_peak),
        curve=_curve(peak.curve),
    )


def _origins(table: pd.DataFrame) -> tuple[AtPeak, ...]:
    return rows(table.head(MOST).astype({"blocks": "Int64", "line": "Int64", "bytes": "int64"}), AtPeak)


def _curve(curve: pd.DataFrame) -> tuple[Any, ...]:
    kept = curve.iloc[downsample(curve["allocated"].to_numpy(dtype=np.int64), POINTS)]
    columns = [kept[name].astype(object) for name in ("ts", "allocated", "reserved")]
    return tuple(tuple(plain(value) for value in point) for point in zip(*columns, strict=True))


def _capacity(trace: Trace, peak: Peak, recorded: RunMemory | None) -> tuple[int | None, str | None]:
    """The capacity in bytes, and its source: the run's memory.json, or the GPU's properties in the trace."""
    if recorded is not None:
        return recorded.capacity_bytes, recorded.capacity_source
    if peak.kind == HOST:
        return None, None
    properties = next((d for d in trace.meta.devices if d.get("id") == peak.device), {})
    total = properties.get("totalGlobalMem")
    return (total, "device") if isinstance(total, int) and total > 0 else (None, None)


def _held(recorded: RunMemory | None) -> dict[int, dict[str, int]]:
    if recorded is None:
        return {}
    return {kind: recorded.held for kind, name in _KINDS.items() if name == recorded.device}
