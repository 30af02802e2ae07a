"""The memory of each variant, from its profiled window, and of those that ran out of it; the line through batch sizes.

Figures are medians over the runs, of the device the training ran on. On a CPU the peak is that of the profiler's
allocator events with what the run counted of its lasting tensors.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import floor
from operator import attrgetter
from typing import Any, Final

import numpy as np
from msgspec.structs import asdict

from steptrace.compare.explain import median_of
from steptrace.compare.load import Run, Study, Variant
from steptrace.config.documents import read_yaml
from steptrace.documents.comparison import MemoryFit, MemoryOfVariant
from steptrace.documents.comparison.window import OutOfMemoryOfVariant
from steptrace.documents.memory import DeviceMemory
from steptrace.documents.run import RunMemory
from steptrace.errors import SteptraceError
from steptrace.record import read_memory

#: What may differ between variants that one line is drawn through.
_LABELS: Final = ("study", "variant", "digest")
#: Of a trace's entry.
_MEDIANS: Final = ("peak_allocated_bytes", "peak_reserved_bytes", "before_bytes", "headroom_bytes", "fragmentation")

Curve = tuple[tuple[int, int, int | None], ...]


def memory_of(variant: Variant) -> MemoryOfVariant | None:
    """`memory` of a variant in comparison.json: its peak and what was live there, or how it ran out; else None."""
    found = [(run, entry) for run in variant.runs if (entry := _of_device(run)) is not None]
    records = {run.repeat: record for run in variant.runs if (record := _record(run)) is not None}
    if not found and not any(record.oom for record in records.values()):
        return None
    entries = [entry for _, entry in found]
    first = entries[0] if entries else None
    known = next(iter(records.values()), None)
    capacity = median_of(entries, lambda entry: entry.capacity_bytes)
    return MemoryOfVariant(
        device_type=first.device_type if first else (known.device if known else None),
        batch_size=_batch_size(variant, known),
        **{name: median_of(entries, attrgetter(name)) for name in _MEDIANS},
        capacity_bytes=known.capacity_bytes if capacity is None and known is not None else capacity,
        capacity_source=(first.capacity_source if first else None) or (known.capacity_source if known else None),
        complete=all(entry.complete for entry in entries) if entries else None,
        gradient_bytes=median_of(list(records.values()), lambda record: record.gradient_bytes),
        by_category={
            name: float(np.median([entry.by_category[name] for entry in entries]))
            for name in (first.by_category if first else ())
        },
        curve=_one_step(*found[0]) if found else None,
        peak_ts=first.peak_ts if first else None,
        oom=_ran_out(records, variant),
    )


def memory_fits(study: Study, memory: Mapping[str, MemoryOfVariant | None]) -> list[MemoryFit]:
    """`memory_fit` of comparison.json: the line through the peaks of variants that differ in the batch size alone.

    One entry for each such group with two batch sizes measured; `largest_batch` is what should fit the capacity, null
    where peak memory is not linear in the batch size. Variants of the group that ran out of memory are named with it.
    """
    groups: dict[str, dict[str, MemoryOfVariant]] = {}
    for variant in study.variants:
        entry, config = memory[variant.name], _config(variant)
        if entry is not None and entry.batch_size is not None and config is not None:
            groups.setdefault(_all_else(config), {})[variant.name] = entry
    return [fit for fit in map(_fit, groups.values()) if fit is not None]


def _fit(memory: Mapping[str, MemoryOfVariant]) -> MemoryFit | None:
    measured = {
        entry.batch_size: round(entry.peak_allocated_bytes)
        for entry in memory.values()
        if entry.batch_size is not None and entry.peak_allocated_bytes is not None and entry.complete
    }
    fit = fit_peaks(measured)
    if fit is None:
        return None
    capacity = next((entry.capacity_bytes for entry in memory.values() if entry.capacity_bytes is not None), None)
    ran_out = {name: entry for name, entry in memory.items() if entry.oom is not None}
    return MemoryFit(
        variants=tuple(memory),
        out_of_memory=tuple(ran_out),
        **vars(fit),
        capacity_bytes=capacity,
        largest_batch=None if capacity is None else fit.largest(capacity),
        failed_batch=min((entry.batch_size for entry in ran_out.values() if entry.batch_size), default=None),
    )


def _of_device(run: Run) -> DeviceMemory | None:
    """The entry of summary.json's `memory` on the device that a run trained on, of rank 0's trace."""
    if run.measured is None or run.measured.trace is None:
        return None
    wanted = run.measured.record.device.partition(":")[0]
    return next((entry for entry in run.measured.trace.memory or () if entry.device_type == wanted), None)


def _record(run: Run) -> RunMemory | None:
    """What a run wrote of its memory, if it ended in a way that can be told of."""
    if run.status not in ("ok", "oom"):
        return None
    try:
        return read_memory(run.path)
    except SteptraceError:
        return None


def _ran_out(records: Mapping[int, RunMemory], variant: Variant) -> OutOfMemoryOfVariant | None:
    """How the first run that ran out of memory did so, and which runs did."""
    repeats = [repeat for repeat, record in records.items() if record.oom is not None]
    if not repeats:
        return None
    oom = records[repeats[0]].oom
    assert oom is not None
    return OutOfMemoryOfVariant(**asdict(oom), runs=tuple(repeats), of=len(variant.runs))


def _batch_size(variant: Variant, record: RunMemory | None) -> int | None:
    if record is not None:
        return record.batch_size
    config = _config(variant) or {}
    return (config.get("data") or {}).get("batch_size")


def _config(variant: Variant) -> Mapping[str, Any] | None:
    """A variant's configuration: what a run recorded, or, where none got that far, what it was started with."""
    if variant.measured:
        return variant.measured[0].record.config
    try:
        return read_yaml(variant.path / "config.yaml")
    except SteptraceError:
        return None


def _all_else(config: Mapping[str, Any]) -> str:
    """A text that two configurations share if they differ in their batch size alone."""
    rest = {key: value for key, value in config.items() if key not in _LABELS}
    rest["data"] = {key: value for key, value in (rest.get("data") or {}).items() if key != "batch_size"}
    return json.dumps(rest, sort_keys=True, default=str)


def _one_step(run: Run, entry: DeviceMemory) -> Curve | None:
    """The curve within the profiled step that holds the peak, or within the window if the trace marks no steps."""
    if not entry.curve:
        return None
    steps = run.measured.trace.steps if run.measured and run.measured.trace else ()
    spans = [(step.start_ns, step.start_ns + step.dur_ns) for step in steps]
    inside = [(start, end) for start, end in spans if start <= entry.peak_ts < end]
    if not inside:
        return entry.curve
    start, end = inside[0]
    before = [point for point in entry.curve if point[0] < start][-1:]
    at_start = [(start, allocated, reserved) for _, allocated, reserved in before]
    return (*at_start, *(point for point in entry.curve if start <= point[0] <= end))


#: With a larger residual the peaks are not linear in the batch size, and nothing is predicted.
MOST_RESIDUAL: Final = 0.10


@dataclass(frozen=True)
class PeakLine:
    """peak = `fixed_bytes` + `per_sample_bytes` x batch size.

    `residual` is the largest distance of a measured peak from the line over that peak; None with two sizes, through
    which there is always a line.
    """

    peaks: tuple[tuple[int, int], ...]
    fixed_bytes: float
    per_sample_bytes: float
    residual: float | None

    @property
    def holds(self) -> bool:
        """Whether the peaks rise linearly with the batch size."""
        return self.per_sample_bytes > 0 and (self.residual is None or self.residual <= MOST_RESIDUAL)

    def largest(self, capacity_bytes: float) -> int | None:
        """The largest batch whose peak fits the capacity, 0 if not even one sample's does; None without a line."""
        if not self.holds:
            return None
        room = (capacity_bytes - self.fixed_bytes) / self.per_sample_bytes
        return max(floor(room + 1e-6), 0)  # a line through exact multiples comes out a hair below them


def fit_peaks(peaks: Mapping[int, int]) -> PeakLine | None:
    """The least-squares line through peaks in bytes by batch size; None with fewer than two sizes."""
    if len(peaks) < 2:
        return None
    points = tuple(sorted(peaks.items()))
    size, peak = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    slope, fixed = np.polyfit(size, peak, 1)
    residual = float((np.abs(fixed + slope * size - peak) / peak).max()) if len(points) > 2 else None
    return PeakLine(points, float(fixed), float(slope), residual)
