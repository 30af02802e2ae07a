"""The first look at a variant: where its step goes, where its operators run, and in which number formats.

Everything comes from rank 0's profiled windows. Parts are means over the runs, so that they still add up to the mean
step; shares and counts are medians.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from msgspec.structs import replace

from steptrace.compare.explain import median_of
from steptrace.compare.load import Variant
from steptrace.documents.comparison import OverviewOfVariant, PlacementOfVariant, PrecisionOfVariant
from steptrace.documents.rows import TopOperator
from steptrace.documents.summary import Overview, Placement, TraceSummary
from steptrace.format import NS_PER_MS


def overview_figures(variant: Variant) -> dict[str, Any]:
    """`overview`, `placement` and `precision` of comparison.json, each None if no run's trace has it."""
    traces = variant.traces
    overviews = [trace.overview for trace in traces if trace.overview is not None and trace.overview.steps]
    formats = [shares for trace in traces if (shares := PrecisionOfVariant.of_trace(trace.precision)) is not None]
    return {
        "overview": _overview(overviews) if overviews else None,
        "placement": _placement(traces),
        "precision": _precision(formats) if formats else None,
    }


def _overview(found: list[Overview]) -> OverviewOfVariant:
    alike = [item for item in found if item.kind == found[0].kind]
    names = dict.fromkeys(name for item in alike for name in item.parts_ns)
    return OverviewOfVariant(
        kind=found[0].kind,
        step_ms=float(np.mean([item.window_ns / item.steps for item in alike])) / NS_PER_MS,
        parts_ms={
            name: float(np.mean([item.parts_ns.get(name, 0) / item.steps for item in alike])) / NS_PER_MS
            for name in names
        },
        device_compute_share=median_of(alike, lambda item: item.device_compute_share),
        operators=tuple(_per_step(row, alike[0].steps) for row in alike[0].operators),
    )


def _per_step(row: TopOperator, steps: int) -> TopOperator:
    """An operator's calls and times of one step: windows differ in their number of steps. Calls: if in every step."""
    times = {name: getattr(row, name) for name in ("host_self_ns", "device_self_ns")}
    return replace(
        row,
        calls=None if row.calls is None or row.calls < steps else round(row.calls / steps),
        **{name: None if ns is None else round(ns / steps) for name, ns in times.items()},
    )


def _placement(traces: Sequence[TraceSummary]) -> PlacementOfVariant | None:
    """Figures a step, or of the whole trace where that marks no steps."""
    found = [(trace.placement, trace.quality.steps or 1) for trace in traces if trace.placement is not None]
    if not found:
        return None

    def per_step(figure: Callable[[Placement], int | None]) -> float | None:
        return median_of(found, lambda item: None if (value := figure(item[0])) is None else value / item[1])

    return PlacementOfVariant(**{name: per_step(attrgetter(name)) for name in PlacementOfVariant.__struct_fields__})


def _precision(found: list[PrecisionOfVariant]) -> PrecisionOfVariant:
    by_format = found[0].kernel_share
    shares = [name for name in PrecisionOfVariant.__struct_fields__ if name != "kernel_share"]
    return PrecisionOfVariant(
        kernel_share={name: float(np.median([item.kernel_share[name] for item in found])) for name in by_format},
        **{name: median_of(found, attrgetter(name)) for name in shares},
    )
