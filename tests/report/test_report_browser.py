"""The pages in a real browser, from file://, without a network."""

from pathlib import Path
from typing import Any

import pytest

from steptrace.report.notebook import render_study

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", ["study", "index", "trace"])
def test_a_page_opens_without_an_error_or_an_outside_request(
    visit: Any, pages: dict[str, Path], name: str, width: int
) -> None:
    tab, said, asked = visit(pages[name], width)
    assert said == []
    assert asked == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.locator("h1").count() == 1


@pytest.mark.parametrize("width", [1280, 390])
def test_names_of_145_characters_without_a_break_do_not_widen_the_page(
    visit: Any, study_builder: Any, tmp_path: Path, width: int
) -> None:
    long = "x" * 145
    place = {"file": f"/{long}/{long}.py", "function": long, "op": long, "label": long, "code": long, "line": 1}
    found = {
        "hypothesis": long,
        "predicted_sites": [{**place, "count_per_step": 2}],
        "syncs": {"predicted_per_step": 2},
        "noise": {"iqr_over_median": 0.2, "warnings": [long]},
    }
    for name in (long, f"{long}2"):
        study_builder.add(name, [20.0, 21.0], **found)
    study_builder.comparison["findings"] = [
        {"rule": long, "severity": "high", "variant": long, "claim": long, "advice": long, "evidence": [long]}
    ]
    render_study(study_builder.write(), tmp_path / "long.html")
    tab, *_ = visit(tmp_path / "long.html", width)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_a_head_that_is_a_defined_term_shows_its_meaning_when_focused_and_hides_it_on_escape(
    visit: Any, pages: dict[str, Path]
) -> None:
    tab, said, _ = visit(pages["study"], 1280)
    head = tab.locator("table.result th.term", has_text="Step time").first
    head.focus()
    assert tab.locator("#tip").is_visible()
    assert tab.locator("#tip").inner_text().startswith("Median over unprofiled steps")
    assert head.get_attribute("aria-describedby") == "tip"
    tab.locator("table.result th.term", has_text="Where a step goes").focus()
    assert "host time between the loop's labels" in tab.locator("#tip").inner_text()
    head.focus()
    tab.keyboard.press("Escape")
    assert not tab.locator("#tip").is_visible()
    assert said == []


def test_hostile_data_does_nothing(visit: Any, pages: dict[str, Path]) -> None:
    tab, _, _ = visit(pages["study"], 1280)
    assert tab.locator("main script").count() == 0
    assert tab.get_by_text("<script>alert('x')</script>").count() > 0


def test_the_table_sorts_by_a_column_and_keeps_the_unmeasured_last(visit: Any, pages: dict[str, Path]) -> None:
    tab, _, _ = visit(pages["study"], 1280)
    names = tab.locator("table.variants tbody .variant")
    head = tab.locator("table.variants thead th", has_text="Step time")
    head.click()
    assert names.all_inner_texts()[:2] == ["boolean_mask", "ignore_index"]
    head.click()
    assert names.all_inner_texts()[:2] == ["ignore_index", "boolean_mask"]
    assert head.get_attribute("aria-sort") == "ascending"


def test_charts_are_seen_and_follow_the_theme(visit: Any, pages: dict[str, Path]) -> None:
    tab, _, _ = visit(pages["study"], 1280)
    chart = tab.locator("svg.chart").first
    assert chart.bounding_box()["width"] > 300
    text = chart.locator("text", has_text="boolean_mask").first
    light = text.evaluate("e => getComputedStyle(e).fill")
    tab.emulate_media(color_scheme="dark")
    assert text.evaluate("e => getComputedStyle(e).fill") != light
