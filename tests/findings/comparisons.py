"""Comparisons for tests of findings: of one variant with nothing to object to, and changes of it."""

from collections.abc import Mapping
from typing import Any

from documents import fill
from steptrace.analysis.input import verdict_on
from steptrace.documents.comparison import Comparison


def healthy_variant() -> dict[str, Any]:
    """A variant measured on a GPU with nothing to object to: a step of 20 ms, the GPU busy for 18 of them."""
    return {
        "name": "v",
        "status": "ok",
        "runs": [{"repeat": repeat, "status": "ok"} for repeat in range(3)],
        "step_ms": {"statistic": "median", "median": 20.0, "low": 19.8, "high": 20.2, "runs": 3, "steps": 60},
        "ratio": {"value": 2.0, "low": 1.9, "high": 2.1, "verdict": "faster"},
        "noise": {"iqr_over_median": 0.03, "warnings": []},
        "syncs": {"measured_per_step": 1},
        "gpu_busy_pct": 90.0,
        "nvml_util_pct": 95.0,
        "profiled_over_unprofiled": 1.05,
        "input": waiting(0.005),
        "operators_per_step": 300,
        "kernels_per_step": 100,
        "equivalence": {"status": "same", "max_rel_err": 1e-7},
    }


def waiting(share: float, **changes: Any) -> dict[str, Any]:
    """What a step of 20 ms waits for its data."""
    times = {"wait_ms": 20 * share, "counted_ms": 20 * share, "step_ms": 20.0}
    parts = {"fetch": 7.6, "collate": 0.4}
    return times | {"share": share, "verdict": verdict_on(share), "breakdown_ms": parts} | changes


def predicted(**changes: Any) -> dict[str, Any]:
    """A predicted sync."""
    fields = {"file": "loss.py", "line": 12, "op": "aten::nonzero", "kind": "d2h_copy", "code": "mask.nonzero()"}
    return fields | {"count_per_step": 1} | changes


def run(status: str, **error: Any) -> dict[str, Any]:
    """A run that ended in this way."""
    return {"repeat": 1, "status": status, "error": {"status": status, **error}}


def comparison(variant: Mapping[str, Any], **changes: Any) -> Comparison:
    """A study of one variant."""
    return fill(Comparison, {"study": "s", "variants": [variant], **changes})


def changed(**changes: Any) -> Comparison:
    """A study of the healthy variant with changes."""
    return comparison(healthy_variant() | changes)
