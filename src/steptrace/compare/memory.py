"""The memory of each variant by its runs' records, and the line of traced peaks through batch sizes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from steptrace.compare.load import Run, Study, Variant
from steptrace.config.documents import read_yaml
from steptrace.documents.column import over_runs
from steptrace.documents.comparison import MemoryFit, VariantResult
from steptrace.documents.run import RunMemory
from steptrace.errors import SteptraceError
from steptrace.limits import MOST_RESIDUAL
from steptrace.record import read_memory

#: What may differ between variants that one line is drawn through.
_LABELS: Final = ("study", "variant", "digest")


def memory_of(variant: Variant) -> RunMemory | None:
    """`memory` of a variant in comparison.json: its runs' records as one; None without any."""
    records = [record for run in variant.runs if (record := _record(run)) is not None]
    ended_well = [record for record in records if record.oom is None]
    if not records:
        return None
    oom = next((record.oom for record in records if record.oom is not None), None)
    return replace(over_runs(ended_well or records), oom=oom)


def memory_fits(study: Study, entries: Sequence[VariantResult]) -> list[MemoryFit]:
    """`memory_fit` of comparison.json: the line through the peaks of variants that differ in the batch size alone.

    One entry for each such group with two batch sizes measured; `largest_batch` is what should fit the capacity, null
    where peak memory is not linear in the batch size. Variants of the group that ran out of memory are named with it.
    """
    groups: dict[str, list[VariantResult]] = {}
    for variant, entry in zip(study.variants, entries, strict=True):
        config = _config(variant)
        if entry.memory is not None and config is not None:
            groups.setdefault(_all_else(config), []).append(entry)
    return [fit for fit in map(_fit, groups.values()) if fit is not None]


def _fit(entries: Sequence[VariantResult]) -> MemoryFit | None:
    memory = {entry.name: entry.memory for entry in entries if entry.memory is not None}
    measured = {
        memory[entry.name].batch_size: traced.peak_allocated_bytes
        for entry in entries
        if (traced := entry.device_memory) is not None and traced.complete
    }
    fit = fit_peaks(measured)
    if fit is None:
        return None
    capacity = next(record.capacity_bytes for record in memory.values())
    ran_out = {name: record.batch_size for name, record in memory.items() if record.oom is not None}
    return MemoryFit(
        variants=tuple(memory),
        out_of_memory=tuple(ran_out),
        **vars(fit),
        capacity_bytes=capacity,
        largest_batch=fit.largest(capacity),
        failed_batch=min(ran_out.values(), default=None),
    )


def _record(run: Run) -> RunMemory | None:
    """What a run wrote of its memory, if it ended so that there is any."""
    if run.status not in ("ok", "oom"):
        return None
    try:
        return read_memory(run.path)
    except SteptraceError:
        return None


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
