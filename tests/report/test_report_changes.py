"""The syncs gained and lost, from comparison.json to the page."""

import re
from typing import Any

from report.conftest import traced
from steptrace.documents.comparison import Comparison
from steptrace.report.study import load_study, sync_changes, sync_sites

Json = dict[str, Any]


def entry(category: str | None, before_ms: float, after_ms: float, half: float | None = 0.05) -> Json:
    delta = after_ms - before_ms
    found: Json = {
        "delta_ms": delta,
        "delta_ns": round(delta * 1e6),
        "low": None if half is None else delta - half,
        "high": None if half is None else delta + half,
        "baseline_ns": round(before_ms * 1e6),
        "variant_ns": round(after_ms * 1e6),
    }
    return found if category is None else {"category": category, **found}


def change(line: int, before: float, after: float, **more: Any) -> Json:
    sides = {f"{side}_{name}": None for side in ("baseline", "variant") for name in ("blocked_ns", "exposed_idle_ns")}
    fields = {f"{key}_per_step": value for key, value in sides.items()}
    fields |= {"file": "masked_losses.py", "line": line, "op": "aten::_unique2", "label": "unique", "phase": "loss"}
    fields |= {"baseline_count_per_step": before, "variant_count_per_step": after}
    return fields | more


def study_with(builder: Any, *, kind: str = "gpu", repeats: int = 3, **fields: Any) -> Comparison:
    builder.add("boolean_mask", [22.0] * repeats, ratio={"value": 1.0, "verdict": "baseline"}, **fields.pop("base", {}))
    parts = {
        "gpu": [("compute", 10.0, 11.0), ("exposed_comm", 0.0, 0.0), ("idle_sync", 9.0, 0.5), ("residual", 3.0, 2.5)],
        "host": [("data", 1.0, 1.0), ("forward", 12.0, 6.0), ("other", 1.0, 1.0), ("residual", 8.0, 6.0)],
    }[kind]
    half = None if repeats == 1 else 0.05
    shown: Json = {
        "waterfall": [entry(name, before, after, half) for name, before, after in parts],
        "step_difference": entry(None, 22.0, 14.0, half),
    }
    builder.add("where", [14.0] * repeats, ratio={"value": 1.57, "verdict": "faster"}, **(shown | fields))
    return load_study(builder.write())


def text_of(html: object) -> str:
    whole = re.sub(r'<span class="nowrap">(\w+:\d+)</span>', r"\1", str(html).replace("<wbr>", ""))
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", whole))


def test_a_measured_sync_diff_has_counts_and_times(study_builder: Any) -> None:
    times = {"baseline_blocked_ns_per_step": 12.3e6, "variant_blocked_ns_per_step": 0}
    times |= {"baseline_exposed_idle_ns_per_step": 11.9e6, "variant_exposed_idle_ns_per_step": 0}
    study = study_with(
        study_builder,
        sync_diff={"basis": "measured", "sites": [change(38, 1, 0, **times), change(40, 2, 2, variant_line=71)]},
    )
    text = text_of(sync_changes(study))
    assert re.search(r"1 → 0 masked_losses.py:38 aten::_unique2 unique 12\.3 ms → 0 ns 11\.9 ms → 0 ns", text)
    assert "masked_losses.py:40" not in text  # it syncs as often as before
    assert "1 site changes against boolean_mask , measured" in text


def test_a_predicted_sync_diff_is_called_so_and_has_no_times(study_builder: Any) -> None:
    study = study_with(study_builder, sync_diff={"basis": "predicted", "sites": [change(38, 1, 0)]})
    text = text_of(sync_changes(study))
    assert re.search(r"1 → 0 masked_losses.py:38", text)
    assert "Host blocked Exposed GPU idle" not in text


def test_a_label_that_is_the_phase_stands_once(study_builder: Any) -> None:
    site = change(38, 1, 0, phase="backward", label="backward")
    study = study_with(study_builder, sync_diff={"basis": "predicted", "sites": [site]})
    assert text_of(sync_changes(study)).count("backward") == 1


def test_what_each_site_costs_at_most_stands_on_the_page(study_builder: Any) -> None:
    priced = {
        "file": "masked_losses.py",
        "line": 38,
        "op": "aten::nonzero",
        "count_per_step": 1,
        "blocked_ns_per_step": 9e6,
        "exposed_idle_ns_per_step": 8e6,
        "ceiling_ns_per_step": 8.5e6,
    }
    study = study_with(
        study_builder,
        base={"trace": traced(1, None, [priced]), "syncs": {"measured_per_step": 1}},
        sync_diff={"basis": "measured", "sites": [change(38, 1, 0)]},
    )
    text = text_of(sync_sites(study))
    assert re.search(r"masked_losses.py:38 aten::nonzero 1 9\.00 ms 8\.00 ms 8\.50 ms", text)
    assert "Without its syncs a step is at most 9.00 ms shorter" in text
