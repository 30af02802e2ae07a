"""Which syncs came, went and stayed between two variants of a comparison."""

from typing import Any

from steptrace.compare.sync_diff import sync_diff


def site(line: int, label: str, count: float = 1, **figures: Any) -> dict[str, Any]:
    fields = {
        "file": "losses.py",
        "line": line,
        "function": "forward",
        "op": f"aten::{label}",
        "label": label,
        "kind": "d2h_copy",
        "phase": "loss",
        "code": "x",
        "count_per_step": count,
    }
    return fields | figures


def variant(name: str, sites: list[dict[str, Any]], basis: str = "predicted") -> dict[str, Any]:
    counts = {"measured_per_step": None, "predicted_per_step": None}
    return {
        "name": name,
        "syncs": counts | {f"{basis}_per_step": sum(s["count_per_step"] for s in sites)},
        "sync_sites" if basis == "measured" else "predicted_sites": sites,
    }


def rows(diff: dict[str, Any] | None) -> list[tuple[Any, ...]]:
    assert diff is not None
    return [
        (row["label"], row["line"], row["variant_line"], row["baseline_count_per_step"], row["variant_count_per_step"])
        for row in diff["sites"]
    ]


def test_sites_go_stay_move_and_come() -> None:
    before = variant("base", [site(38, "unique"), site(40, "mask", 2), site(50, "copy")])
    after = variant("v", [site(71, "mask", 2), site(50, "copy", 3), site(90, "sort")])
    diff = sync_diff(before, after)
    assert diff is not None
    assert diff["basis"] == "predicted"
    assert rows(diff) == [
        ("unique", 38, None, 1, 0),
        ("copy", 50, None, 1, 3),
        ("sort", 90, None, 0, 1),
        ("mask", 40, 71, 2, 2),
    ]


def test_a_predicted_diff_has_no_times() -> None:
    diff = sync_diff(variant("base", [site(38, "unique")]), variant("v", []))
    assert diff is not None
    (row,) = diff["sites"]
    assert row["baseline_blocked_ns_per_step"] is None
    assert row["variant_exposed_idle_ns_per_step"] is None


def test_a_measured_diff_has_the_times_of_both_sides_dearest_first() -> None:
    costly = site(60, "item", blocked_ns_per_step=9e6, exposed_idle_ns_per_step=8e6)
    cheap = site(38, "unique", blocked_ns_per_step=1e6, exposed_idle_ns_per_step=0)
    diff = sync_diff(variant("base", [cheap, costly], "measured"), variant("v", [], "measured"))
    assert diff is not None
    assert [row["line"] for row in diff["sites"]] == [60, 38]
    assert diff["sites"][0]["baseline_exposed_idle_ns_per_step"] == 8e6
    assert diff["sites"][0]["variant_blocked_ns_per_step"] == 0


def test_what_was_measured_is_never_compared_with_a_prediction() -> None:
    assert sync_diff(variant("base", [site(1, "a")], "measured"), variant("v", [], "predicted")) is None


def test_a_baseline_has_no_diff_with_itself() -> None:
    base = variant("base", [site(1, "a")])
    assert sync_diff(base, base) is None
