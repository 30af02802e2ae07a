"""The overview and precision of a variant, from its runs' traces."""

from collections.abc import Callable
from typing import Any

from documents import compare, fill
from steptrace.documents.kernels import Precision

MS = 1_000_000
PRECISION = {
    "kernel_ns": {"bits8": 0, "bits16": 60, "bits32": 30, "bits64": 0, "integer": 0, "unknown": 10},
    "tf32_ns": 5,
    "tensor_core_ns": 40,
    "tensor_core_eligible_ns": 80,
    "tensor_core_unknown_ns": 10,
}


def _trace(trace_of: Callable[..., dict[str, Any]], **changes: Any) -> dict[str, Any]:
    seen = {
        "kind": "gpu",
        "steps": 2,
        "window_ns": 40 * MS,
        "step_ns": 20.0 * MS,
        "parts_ns": {"compute": 30 * MS, "idle_sync": 10 * MS},
        "operators": [],
    }
    return trace_of(**({"overview": seen, "precision": PRECISION} | changes))


def _variant(folder: Any, summaries: list[dict[str, Any]]) -> dict[str, Any]:
    folder.make_study([{"name": "base"}])
    for repeat, summary in enumerate(summaries):
        folder.add_run("base", repeat, [20.0] * 10, summary=summary)
    (variant,) = compare(folder.path)["variants"]
    return variant  # type: ignore[no-any-return]


def test_parts_are_means_that_add_up(folder: Any, trace_of: Callable[..., dict[str, Any]]) -> None:
    plain = _trace(trace_of)
    slow = _trace(trace_of)
    slow["traces"][0]["overview"] |= {
        "window_ns": 100 * MS,
        "parts_ns": {"compute": 30 * MS, "idle_sync": 70 * MS},
    }
    overview = _variant(folder, [plain, plain, slow])["trace"]["overview"]
    assert overview["window_ns"] == 60 * MS
    assert overview["parts_ns"] == {"compute": 30 * MS, "idle_sync": 30 * MS}


def test_what_one_run_did_not_measure_is_null(folder: Any, trace_of: Callable[..., dict[str, Any]]) -> None:
    nothing = _trace(trace_of, overview=None, precision=None)
    trace = _variant(folder, [_trace(trace_of), nothing])["trace"]
    assert (trace["overview"], trace["precision"]) == (None, None)


def test_shares_of_precision() -> None:
    of = fill(Precision, {**PRECISION, "tensor_core_eligible_ns": 80})
    assert (of.shares["bits16"], of.tf32_share) == (0.6, 0.05)
    assert (of.tensor_core_share, of.tensor_core_unknown_share) == (0.5, 0.125)
    assert fill(Precision, {**PRECISION, "tensor_core_eligible_ns": 0}).tensor_core_share is None
    assert fill(Precision, {"kernel_ns": {}}).shares == {}
