"""The memory of each variant, from its profiled window, and of those that ran out of it; the line through batch sizes.

Figures are medians over the runs, of the device the training ran on. On a CPU the peak is that of the profiler's
allocator events with what the run counted of its lasting tensors.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from operator import itemgetter
from typing import Any, Final

from steptrace.compare.explain import median_of
from steptrace.compare.load import Run, Study, Variant
from steptrace.compare.memory_fit import fit_peaks
from steptrace.config.documents import read_yaml
from steptrace.errors import SteptraceError
from steptrace.memory_record import RunMemory, read_memory

#: How many kinds of live tensors of an out of memory comparison.json holds.
_MOST: Final = 15
_FIGURES: Final = (
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "before_bytes",
    "capacity_bytes",
    "headroom_bytes",
    "fragmentation",
)
#: What may differ between variants that one line is drawn through.
_LABELS: Final = ("study", "variant", "digest")


def memory_of(variant: Variant) -> dict[str, Any] | None:
    """`memory` of a variant in comparison.json: its peak and what was live there, or how it ran out; else None."""
    found = [entry for run in variant.runs if (entry := _of_device(run)) is not None]
    records = {run.repeat: record for run in variant.runs if (record := _record(run)) is not None}
    if not found and not any(record.oom for record in records.values()):
        return None
    first = next(iter(found), {})
    known = next(iter(records.values()), None)
    figures: dict[str, Any] = {name: median_of(found, itemgetter(name)) for name in _FIGURES}
    if known is not None and figures["capacity_bytes"] is None:
        figures["capacity_bytes"] = known.capacity_bytes
    sums = [entry["by_category"] for entry in found]
    categories = sums[0] if sums else ()
    return {
        "device_type": first.get("device_type") or (known.device if known else None),
        "batch_size": _batch_size(variant, known),
        **figures,
        "capacity_source": first.get("capacity_source") or (known.capacity_source if known else None),
        "complete": all(entry["complete"] for entry in found) if found else None,
        "gradient_bytes": median_of(list(records.values()), lambda record: record.gradient_bytes),
        "by_category": {name: median_of(sums, itemgetter(name)) for name in categories},
        "curve": _one_step(variant, first),
        "peak_ts": first.get("peak_ts"),
        "oom": _ran_out(records, variant),
    }


def memory_fits(study: Study, entries: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """`memory_fit` of comparison.json: the line through the peaks of variants that differ in the batch size alone.

    One entry for each such group with two batch sizes measured; `largest_batch` is what should fit the capacity, null
    where the peaks lie on no line. Variants of the group that ran out of memory are named with it.
    """
    groups: dict[str, list[Variant]] = {}
    for variant in study.variants:
        entry, config = entries[variant.name]["memory"], _config(variant)
        if entry is not None and entry["batch_size"] is not None and config is not None:
            groups.setdefault(_all_else(config), []).append(variant)
    fits = (
        _fit(group, {variant.name: entries[variant.name]["memory"] for variant in group}) for group in groups.values()
    )
    return [fit for fit in fits if fit is not None]


def _fit(group: Sequence[Variant], memory: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    measured = {
        entry["batch_size"]: entry["peak_allocated_bytes"]
        for entry in memory.values()
        if entry["peak_allocated_bytes"] is not None and entry["complete"]
    }
    fit = fit_peaks(measured)
    if fit is None:
        return None
    capacity = next((entry["capacity_bytes"] for entry in memory.values() if entry["capacity_bytes"] is not None), None)
    ran_out = [name for name, entry in memory.items() if entry["oom"] is not None]
    return {
        "variants": [variant.name for variant in group],
        "out_of_memory": ran_out,
        "peaks": [list(point) for point in fit.peaks],
        "fixed_bytes": fit.fixed_bytes,
        "per_sample_bytes": fit.per_sample_bytes,
        "residual": fit.residual,
        "capacity_bytes": capacity,
        "largest_batch": None if capacity is None else fit.largest(capacity),
        "failed_batch": min((memory[name]["batch_size"] for name in ran_out), default=None),
    }


def _of_device(run: Run) -> Mapping[str, Any] | None:
    """The entry of summary.json's `memory` on the device that a run trained on, of rank 0's trace."""
    if run.measured is None:
        return None
    traces = (run.measured.summary or {}).get("traces") or [{}]
    entries: Sequence[Mapping[str, Any]] = traces[0].get("memory") or ()
    wanted = run.measured.record.device.partition(":")[0]
    return next((entry for entry in entries if entry["device_type"] == wanted), None)


def _record(run: Run) -> RunMemory | None:
    """What a run wrote of its memory, if it ended in a way that can be told of."""
    if run.status not in ("ok", "oom"):
        return None
    try:
        return read_memory(run.path)
    except SteptraceError:
        return None


def _ran_out(records: Mapping[int, RunMemory], variant: Variant) -> dict[str, Any] | None:
    """How the first run that ran out of memory did so, and which runs did."""
    repeats = [repeat for repeat, record in records.items() if record.oom is not None]
    if not repeats:
        return None
    oom = records[repeats[0]].oom
    assert oom is not None
    found = asdict(oom) | {"runs": repeats, "of": len(variant.runs)}
    found["live"] = found["live"][:_MOST]
    return found


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


def _one_step(variant: Variant, entry: Mapping[str, Any]) -> list[list[int | None]] | None:
    """The curve within the profiled step that holds the peak, or within the window if the trace marks no steps."""
    curve: Sequence[list[int | None]] = entry.get("curve") or ()
    if not curve:
        return None
    run = next(run for run in variant.runs if _of_device(run) is entry or _of_device(run) == entry)
    assert run.measured is not None
    assert run.measured.summary is not None
    steps = run.measured.summary["traces"][0].get("steps") or ()
    spans = [(step["start_ns"], step["start_ns"] + step["dur_ns"]) for step in steps if "start_ns" in step]
    inside = [(start, end) for start, end in spans if start <= entry["peak_ts"] < end]
    if not inside:
        return list(curve)
    start, end = inside[0]
    before = [point for point in curve if (point[0] or 0) < start][-1:]
    return [[start, *before[0][1:]]] * bool(before) + [point for point in curve if start <= (point[0] or 0) <= end]
