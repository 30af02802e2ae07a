"""The waterfall from one step to another: where its bars lie, and from which parts a study's page makes it."""

import xml.etree.ElementTree as ET

import pytest

from documents import an_estimate
from report.conftest import BASE, ratio, traced
from steptrace.findings.verdict import verdict_of
from steptrace.report.charts.cells import Interval, difference_cell, interval_cell
from steptrace.report.charts.scale import Scale
from steptrace.report.charts.waterfall import WaterfallChange, waterfall
from steptrace.report.study.difference import compared_pair, difference


def bar(picture: str) -> tuple[float, float]:
    """Where a row's bar begins and ends, as shares of the width."""
    (box,) = ET.fromstring(picture).iter("rect")
    left, width = (float(box.attrib[name].removesuffix("%")) / 100 for name in ("x", "width"))
    return left, left + width


def test_each_change_begins_where_the_one_before_ended_and_the_last_level_is_the_end():
    changes = [
        WaterfallChange(-40.0, "blue", "a"),
        WaterfallChange(10.0, "green", "b"),
        WaterfallChange(-50.0, "sky", "c"),
    ]
    drawn = waterfall(100.0, changes, 20.0, ("start", "end"))
    assert drawn.low == 0
    spans = [bar(row) for row in drawn.rows]
    expected = [(0, 1), (0.6, 1), (0.6, 0.7), (0.2, 0.7), (0, 0.2)]
    assert [pytest.approx(item) for item in expected] == spans


def test_changes_that_are_small_beside_the_whole_are_seen_on_an_axis_that_does_not_begin_at_0():
    drawn = waterfall(307.0, [WaterfallChange(-28.0, "blue", "a")], 279.0, ("start", "end"))
    assert 0 < drawn.low < 279.0
    begin, change, end = (bar(row) for row in drawn.rows)
    assert begin == (0, 1)
    assert change[1] - change[0] == pytest.approx(28 / (307 - drawn.low), abs=1e-3)
    assert end[1] == pytest.approx(change[0], abs=1e-3)


def test_a_waterfall_goes_up_as_well():
    drawn = waterfall(10.0, [WaterfallChange(30.0, "blue", "a")], 40.0, ("start", "end"))
    assert [bar(row) for row in drawn.rows] == [(0, 0.25), (0.25, 1), (0, 1)]


def test_changes_that_do_not_lead_to_the_end_are_refused():
    with pytest.raises(ValueError, match=r"not to 5\.0$"):
        waterfall(10.0, [WaterfallChange(-1.0, "blue", "a")], 5.0, ("start", "end"))


def test_points_of_single_runs_lie_on_the_scale_of_the_interval():
    interval = Interval(5.0, (4.0, 6.0), points=[4, 8])
    picture = ET.fromstring(interval_cell(Scale(0, 10, log=False), interval, None, "same", "x"))
    runs = [circle.attrib["cx"] for circle in picture.iter("circle") if circle.attrib["class"] == "run"]
    assert runs == ["40%", "80%"]


def test_a_range_of_differences_lies_right_of_0_where_all_of_it_is_above():
    scale = Scale.with_zero([-5.0, 10.0])
    zero, interval = ET.fromstring(difference_cell(scale, (2.0, 10.0), "open", "x")).iter("line")
    left, right = (float(interval.attrib[end].removesuffix("%")) for end in ("x1", "x2"))
    assert float(zero.attrib["x1"].removesuffix("%")) < left < right < 100


def gpu_pair(builder, before, after, *, medians=(30.0, 20.0), counts=(6, 0), **more):
    """A study of two variants with these parts of a step, in ms."""
    builder.comparison["baseline"] = "base"
    builder.comparison["environment"] = {**builder.comparison["environment"], "gpu": "NVIDIA H100 80GB HBM3"}
    verdict = ratio(medians[0] / medians[1], 1.4, 1.6, "faster")
    for name, parts, median, judged, syncs in zip(
        ("base", "fast"), (before, after), medians, (BASE, verdict), counts, strict=True
    ):
        counted = {"measured_per_step": syncs, "predicted_per_step": syncs}
        builder.add(name, [median, median], ratio=judged, trace=traced(median, parts), syncs=counted, **more)
    return builder.study()


def rows(html: str) -> list[str]:
    """The names of a waterfall's rows."""
    listed = ET.fromstring(html[html.index("<ul>") : html.index("</ul>") + len("</ul>")])
    return ["".join(row.itertext()) for row in listed.iter("span")]


def test_a_study_s_waterfall_goes_through_the_parts_that_differ_the_largest_saving_first(study_builder):
    study = gpu_pair(
        study_builder, {"compute": 20.0, "idle_sync": 10.0}, {"compute": 18.0, "idle_sync": 3.0, "exposed_memory": 0.01}
    )
    drawn = rows(str(difference(study)))
    assert drawn == ["base", "idle after a sync", "compute", "the rest", "fast"]
    assert "6" in verdict_of(study).reason


def test_without_a_faster_variant_or_a_profile_that_explains_it_there_is_no_waterfall(study_builder):
    study = gpu_pair(study_builder, {"compute": 30.0}, {"compute": 30.0})
    assert compared_pair(study) is not None
    assert difference(study) == ""


def test_with_one_run_each_the_shortest_step_is_explained_and_named(study_builder):
    study_builder.comparison["baseline"] = "base"
    study_builder.comparison["environment"] = {**study_builder.comparison["environment"], "gpu": "NVIDIA H100"}
    for name, median, wait in (("base", 60.0, 40.0), ("some", 40.0, 20.0), ("most", 30.0, 10.0)):
        judged = BASE if name == "base" else ratio(60.0 / median, None, None, None)
        parts = {"compute": 20.0, "idle_loader": wait}
        study_builder.add(name, [median], ratio=judged, trace=traced(median, parts))
    study = study_builder.study()
    pair = compared_pair(study)
    assert pair is not None
    assert [variant.name for variant in pair] == ["base", "most"]
    assert "`most`" in verdict_of(study).reason


def estimated_pair(builder, **changes):
    """A study without a GPU whose estimates say that `fast` saves 30 ms of kernels and of waits for launches."""
    builder.comparison["baseline"] = "base"
    parts = [
        {"part": "compute", "kind": "scatter", "mean_ms": 20.0, "saved_ms": [12.0, 31.0]},
        {"part": "compute", "kind": None, "mean_ms": 0.0, "saved_ms": [0.0, 0.0]},
        {"part": "idle_host", "kind": None, "mean_ms": 10.0, "saved_ms": [5.0, 14.0]},
    ]
    pair = {"baseline": "base", "saved_ms": [20.0, 40.0], "times_as_fast": [1.5, 2.0], "faster_pct": 100.0,
            "mean_ms": [60.0, 30.0], "parts": parts, **changes}  # fmt: skip
    for name, ms in (("base", 60.0), ("fast", 30.0)):
        estimate = an_estimate(0.5 * ms, 1.5 * ms)
        builder.add(name, [10.0], estimates=[estimate | ({} if name == "base" else {"difference": pair})])
    return builder.study()


def test_without_a_gpu_the_waterfall_goes_through_the_parts_of_the_paired_estimates(study_builder):
    html = str(difference(estimated_pair(study_builder)))
    assert rows(html) == ["base", "kernels: scatter", "waiting for launches", "fast"]
    assert "−31.0 ms to −12.0 ms" in html  # the range, in the tooltip
    assert "60.0 ms" in html
    assert "30.0 ms" in html


def test_estimates_of_earlier_versions_have_no_waterfall(study_builder):
    assert difference(estimated_pair(study_builder, mean_ms=None, parts=[])) == ""
