"""The syncs gained and lost, from comparison.json to the page."""

import re
from typing import Any

from report.conftest import traced
from steptrace.documents.comparison import Comparison
from steptrace.report.study import load_study, syncs

Json = dict[str, Any]


def change(line: int, before: float, after: float, **more: Any) -> Json:
    fields: Json = {
        "file": "masked_losses.py",
        "line": line,
        "op": "aten::_unique2",
        "label": "unique",
        "phase": "loss",
    }
    fields |= {"baseline_count_per_step": before, "variant_count_per_step": after}
    return fields | more


def study_with(builder: Any, **fields: Any) -> Comparison:
    builder.add("boolean_mask", [22.0] * 3, ratio={"value": 1.0, "verdict": "baseline"}, **fields.pop("base", {}))
    builder.add("where", [14.0] * 3, ratio={"value": 1.57, "verdict": "faster"}, baseline="boolean_mask", **fields)
    return load_study(builder.write())


def text_of(html: object) -> str:
    whole = re.sub(r'<span class="nowrap">(\w+:\d+)</span>', r"\1", str(html).replace("<wbr>", ""))
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", whole))


def test_the_places_that_sync_less_or_more_often_are_named(study_builder: Any) -> None:
    kept, gone, new = change(40, 2, 2), change(38, 1, 0), change(51, 0, 1)
    twice = [change(38, 1, 0, op="aten::index"), change(60, 3, 1)]
    study = study_with(
        study_builder,
        syncs={"measured_per_step": 3},
        sync_diff={"basis": "measured", "sites": [gone, kept, new, *twice]},
    )
    assert (
        "where against boolean_mask (measured): removes masked_losses.py:38 ; adds masked_losses.py:51 ; "
        "masked_losses.py:60 3 → 1"
    ) in text_of(syncs(study))


def test_a_variant_that_syncs_as_its_baseline_does_is_not_compared(study_builder: Any) -> None:
    diff = {"basis": "predicted", "sites": [change(38, 1, 1)]}
    assert "Against the baseline" not in syncs(
        study_with(study_builder, syncs={"predicted_per_step": 1}, sync_diff=diff)
    )


def test_what_each_site_costs_at_most_stands_on_the_page(study_builder: Any) -> None:
    priced = {
        "file": "masked_losses.py",
        "line": 38,
        "op": "aten::nonzero",
        "count": 1,
        "blocked_ns": 9_000_000,
        "exposed_idle_ns": 8_000_000,
        "ceiling_ns": 8_500_000,
    }
    study = study_with(
        study_builder,
        base={"trace": traced(1, None, [priced]), "syncs": {"measured_per_step": 1}},
        sync_diff={"basis": "measured", "sites": [change(38, 1, 0)]},
    )
    text = text_of(syncs(study))
    assert re.search(r"masked_losses.py:38 aten::nonzero 1 9\.00 ms 8\.00 ms 8\.50 ms", text)
    assert "Without its syncs a step is at most 9.00 ms shorter" in text
