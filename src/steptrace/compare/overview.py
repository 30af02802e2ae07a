"""The first look at a variant: where its step goes, where its operators run, and in which number formats.

Everything comes from rank 0's profiled windows. Parts are means over the runs, so that they still add up to the mean
step; shares and counts are medians.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from steptrace.compare.explain import median_of
from steptrace.compare.load import Variant

_NS_PER_MS = 1e6
_COUNTS = ("ops_total", "ops_device", "ops_host", "ops_view", "device_ns", "host_ns", "view_ns")

Json = Mapping[str, Any]


def overview_figures(variant: Variant) -> dict[str, Any]:
    """`overview`, `placement` and `precision` of comparison.json, each None if no run's trace has it.

    - `overview`: `kind` (`gpu`, `host`), `step_ms` and `parts_ms` a profiled step, `device_compute_share`, and the top
      `operators` of the first run (`name`, `calls`, `host_self_ns`, `device_self_ns`, `share`).
    - `placement`: operators and their time a step, as `steptrace.analysis.kernels.placement` has them.
    - `precision`: `kernel_share` by number format, `tf32_share` of the kernel time; `eligible_share` of it is tensor
      cores' kind of work, `tensor_core_share` of that ran on them, `tensor_core_unknown_share` may have.
    """
    traces = [found[0] for run in variant.measured if (found := (run.summary or {}).get("traces"))]
    return {
        "overview": _overview([trace["overview"] for trace in traces if (trace.get("overview") or {}).get("steps")]),
        "placement": _placement([trace for trace in traces if trace.get("placement")]),
        "precision": _precision([trace["precision"] for trace in traces if _kernel_ns(trace.get("precision"))]),
    }


def _overview(found: list[Json]) -> dict[str, Any] | None:
    if not found:
        return None
    kind = found[0]["kind"]
    alike = [item for item in found if item["kind"] == kind]
    names = dict.fromkeys(name for item in alike for name in item["parts_ns"])
    parts = {
        name: float(np.mean([item["parts_ns"].get(name, 0) / item["steps"] for item in alike])) / _NS_PER_MS
        for name in names
    }
    return {
        "kind": kind,
        "step_ms": float(np.mean([item["window_ns"] / item["steps"] for item in alike])) / _NS_PER_MS,
        "parts_ms": parts,
        "device_compute_share": median_of(alike, lambda item: item["device_compute_share"]),
        "operators": alike[0]["operators"],
    }


def _placement(found: list[Json]) -> dict[str, Any] | None:
    """Figures a step, or of the whole trace where that marks no steps."""
    if not found:
        return None

    def figure(trace: Json, name: str) -> float | None:
        value = trace["placement"][name]
        return None if value is None else value / ((trace.get("quality") or {}).get("steps") or 1)

    return {name: median_of(found, lambda trace, name=name: figure(trace, name)) for name in _COUNTS}  # type: ignore[misc]


def _precision(found: list[Json]) -> dict[str, Any] | None:
    if not found:
        return None
    formats = list(found[0]["kernel_ns"])
    return {
        "kernel_share": {
            name: median_of(found, lambda item, name=name: item["kernel_ns"][name] / _kernel_ns(item))  # type: ignore[misc]
            for name in formats
        },
        "tf32_share": median_of(found, lambda item: item["tf32_ns"] / _kernel_ns(item)),
        "eligible_share": median_of(found, lambda item: item["tensor_core_eligible_ns"] / _kernel_ns(item)),
        "tensor_core_share": median_of(found, lambda item: _of_eligible(item, "tensor_core_ns")),
        "tensor_core_unknown_share": median_of(found, lambda item: _of_eligible(item, "tensor_core_unknown_ns")),
    }


def _kernel_ns(precision: Json | None) -> int:
    return sum(precision["kernel_ns"].values()) if precision else 0


def _of_eligible(item: Json, name: str) -> float | None:
    eligible = item["tensor_core_eligible_ns"]
    return item[name] / eligible if eligible else None
