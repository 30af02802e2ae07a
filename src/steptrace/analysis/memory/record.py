"""`memory`: the peak of each device's memory, the blocks live at the peak, and the free memory left."""

from itertools import pairwise
from typing import Any, Final

import numpy as np
import pandas as pd

from steptrace.analysis.common.rows import plain, records, rows
from steptrace.analysis.memory import measure
from steptrace.analysis.memory.growth import memory_growth
from steptrace.documents.memory import AtPeak, DeviceMemory
from steptrace.documents.run import RunMemory
from steptrace.intervals import Ints
from steptrace.trace.model import Trace, once

#: Most origins, and most points of a curve, in summary.json; the tables have all.
MOST: Final = 25
POINTS: Final = 400
_KINDS: Final = {0: "cpu", 1: "cuda"}


@once
def memory_tables(trace: Trace) -> dict[str, pd.DataFrame]:
    """The tables of `analysis.memory.tables` but `memory_blocks`; none for a trace without such events."""
    if len(trace.memory) == 0:
        return {}
    held, lines = _held(trace.memory_record), trace.lines
    blocks = measure.memory_blocks(trace)
    devices, curve = measure.memory_devices(trace, blocks, held)
    at_peak = measure.memory_at_peak(trace, blocks, devices, held, lines)
    growth, kept = memory_growth(trace, blocks, lines)
    tables = {"memory_curve": curve, "memory_devices": devices, "memory_at_peak": at_peak}
    return {**tables, "memory_growth": growth, "memory_kept": kept}


def memory(trace: Trace) -> tuple[DeviceMemory, ...] | None:
    """One entry a device, the highest peak first; None where the profiler recorded no allocations."""
    devices = memory_tables(trace).get("memory_devices")
    if devices is None or len(devices) == 0:
        return None
    return tuple(_device(trace, row) for row in records(devices))


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


def _device(trace: Trace, row: dict[str, Any]) -> DeviceMemory:
    kind, device = _KINDS.get(row["device_type"], str(row["device_type"])), row["device"]
    recorded = trace.memory_record
    of_run = recorded if recorded is not None and recorded.device == kind else None
    at_peak, curve, growth, kept = (
        measure.on_device(memory_tables(trace)[name], row["device_type"], row["device"])
        for name in ("memory_at_peak", "memory_curve", "memory_growth", "memory_kept")
    )
    sums = at_peak.groupby("category")["bytes"].sum()
    capacity, source = _capacity(trace, row, of_run)
    taken = row["peak_reserved"] if row["peak_reserved"] is not None else row["peak_allocated"]
    return DeviceMemory(
        device_type=kind,
        device=device,
        peak_allocated_bytes=row["peak_allocated"],
        peak_reserved_bytes=row["peak_reserved"],
        peak_ts=row["peak_ts"],
        before_bytes=row["before"],
        complete=row["complete"],
        counter_agrees=row["agrees"],
        capacity_bytes=capacity,
        capacity_source=source,
        headroom_bytes=capacity - taken if capacity is not None and row["complete"] else None,
        fragmentation=None if of_run is None else of_run.fragmentation,
        by_category={name: int(sums.get(name, 0)) for name in measure.CATEGORIES},
        at_peak=rows(at_peak.head(MOST), AtPeak),
        curve=_curve(curve),
        growth_bytes=tuple(growth["bytes"].tolist()),
        kept=rows(kept.head(MOST), AtPeak),
    )


def _curve(curve: pd.DataFrame) -> tuple[Any, ...]:
    kept = curve.iloc[downsample(curve["allocated"].to_numpy(dtype=np.int64), POINTS)]
    columns = [kept[name].astype(object) for name in ("ts", "allocated", "reserved")]
    return tuple(tuple(plain(value) for value in point) for point in zip(*columns, strict=True))


def _capacity(trace: Trace, row: dict[str, Any], recorded: RunMemory | None) -> tuple[int | None, str | None]:
    """The capacity in bytes, and its source: the run's memory.json, or the GPU's properties in the trace."""
    if recorded is not None:
        return recorded.capacity_bytes, recorded.capacity_source
    if row["device_type"] == measure.HOST:
        return None, None
    properties = next((d for d in trace.meta.devices if d.get("id") == row["device"]), {})
    total = properties.get("totalGlobalMem")
    return (total, "device") if isinstance(total, int) and total > 0 else (None, None)


def _held(recorded: RunMemory | None) -> dict[int, dict[str, int]]:
    if recorded is None:
        return {}
    return {kind: recorded.held for kind, name in _KINDS.items() if name == recorded.device}
