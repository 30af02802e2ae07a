"""The overview, placement and precision of a variant, from its runs' traces."""

from collections.abc import Callable
from typing import Any

from documents import compare

MS = 1_000_000


def _trace(trace_of: Callable[..., dict[str, Any]], **changes: Any) -> dict[str, Any]:
    seen = {
        "kind": "gpu",
        "steps": 2,
        "window_ns": 40 * MS,
        "step_ns": 20.0 * MS,
        "parts_ns": {"compute": 30 * MS, "sync": 10 * MS},
        "device_compute_share": 0.75,
        "operators": [],
    }
    placed = {"ops_total": 30, "ops_device": 20, "ops_host": 4, "ops_view": 6}
    placed |= {"device_ns": 12 * MS, "host_ns": 2 * MS, "view_ns": MS}
    formats = {"bits8": 0, "bits16": 60, "bits32": 30, "bits64": 0, "integer": 0, "unknown": 10}
    told = {"kernel_ns": formats, "tf32_ns": 5, "tensor_core_ns": 40, "tensor_core_eligible_ns": 80}
    told |= {"tensor_core_no_ns": 30, "tensor_core_unknown_ns": 10}
    return trace_of(**({"overview": seen, "placement": placed, "precision": told} | changes))


def _variant(folder: Any, summaries: list[dict[str, Any]]) -> dict[str, Any]:
    folder.make_study([{"name": "base"}])
    for repeat, summary in enumerate(summaries):
        folder.add_run("base", repeat, [20.0] * 10, summary=summary)
    (variant,) = compare(folder.path)["variants"]
    return variant  # type: ignore[no-any-return]


def test_parts_are_means_that_add_up_and_shares_are_medians(
    folder: Any, trace_of: Callable[..., dict[str, Any]]
) -> None:
    plain = _trace(trace_of)
    slow = _trace(trace_of)
    slow["traces"][0]["overview"] |= {
        "window_ns": 100 * MS,
        "parts_ns": {"compute": 30 * MS, "sync": 70 * MS},
        "device_compute_share": 0.3,
    }
    found = _variant(folder, [plain, plain, slow])["overview"]
    assert found["step_ms"] == 30.0
    assert found["parts_ms"] == {"compute": 15.0, "sync": 15.0}
    assert sum(found["parts_ms"].values()) == found["step_ms"]
    assert found["device_compute_share"] == 0.75


def test_placement_is_per_step_and_precision_in_shares(folder: Any, trace_of: Callable[..., dict[str, Any]]) -> None:
    variant = _variant(folder, [_trace(trace_of)])
    assert variant["placement"]["ops_device"] == 10
    assert variant["placement"]["device_ns"] == 6 * MS
    precision = variant["precision"]
    assert precision["kernel_share"]["bits16"] == 0.6
    assert (precision["eligible_share"], precision["tensor_core_share"]) == (0.8, 0.5)
    assert (precision["tensor_core_unknown_share"], precision["tf32_share"]) == (0.125, 0.05)


def test_what_no_trace_measured_is_null(folder: Any, trace_of: Callable[..., dict[str, Any]]) -> None:
    nothing = _trace(trace_of, overview=None, placement=None, precision=None)
    variant = _variant(folder, [nothing, trace_of()])
    assert (variant["overview"], variant["placement"], variant["precision"]) == (None, None, None)


def test_without_matrix_work_there_is_no_share_of_it(folder: Any, trace_of: Callable[..., dict[str, Any]]) -> None:
    trace = _trace(trace_of)
    trace["traces"][0]["precision"] |= {"tensor_core_eligible_ns": 0, "tensor_core_ns": 0}
    assert _variant(folder, [trace])["precision"]["tensor_core_share"] is None


def test_operators_are_those_of_one_step(folder: Any, trace_of: Callable[..., dict[str, Any]]) -> None:
    row = {"name": "aten::mm", "calls": 6, "host_self_ns": 400, "device_self_ns": None, "share": 0.5}
    plain = _trace(trace_of)
    plain["traces"][0]["overview"]["operators"] = [row, row | {"name": "once", "calls": 1}]
    first, once = _variant(folder, [plain])["overview"]["operators"]
    assert (first["calls"], first["host_self_ns"], first["device_self_ns"]) == (3, 200, None)
    assert once["calls"] is None
