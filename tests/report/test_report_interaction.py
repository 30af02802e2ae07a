"""What a reader can do on a page, in a real browser, from file:// and without a network."""

import pytest

from steptrace.report.study_page import render_study

pytestmark = pytest.mark.browser

EVERYTHING = """() => {
  const parts = [...document.querySelectorAll("main summary, main button, main th.sort, main input[type=checkbox]")];
  for (const part of parts) part.click();
  return parts.length;
}"""

ALL_PAGES = ("study", "gpu", "cpu", "matrix", "index", "trace", "cpu_trace", "results", "diff")


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [
        *((name, 390, "dark") for name in ALL_PAGES),
        *((name, 1440, "light") for name in ("gpu", "matrix", "trace", "results")),
    ],
)
def test_all_that_can_be_clicked_works_without_an_error_or_a_request(visit, pages, name, width, scheme):
    tab, messages, requests = visit(pages[name], width, scheme)
    for _ in range(2):
        assert (tab.evaluate(EVERYTHING) > 0) == (name != "index")  # which has links alone
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.locator("h1").count() == 1
    assert (messages, requests) == ([], [])


def test_sorting_by_keyboard_puts_numbers_in_order_whatever_their_unit_and_dates_as_text(visit, pages):
    tab, *_ = visit(pages["gpu"], 1440, "light")
    tab.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    # Heads are not shown on a narrow screen, where rows are cards; they can still be used by a script.
    tab.evaluate("""() => {
      const heads = document.querySelectorAll("table.sortable thead th");
      const head = [...heads].find((one) => one.textContent === "Host blocked per step");
      head.dispatchEvent(new KeyboardEvent("keydown", { key: " ", cancelable: true }));
      head.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", cancelable: true }));
    }""")
    cost = "td[data-label='Host blocked per step']"
    cells = tab.locator(f"table.sortable:has({cost})").first.locator(f"tbody {cost}").all_inner_texts()
    assert cells == ["200 µs", "400 µs", "1.20 ms", "2.10 ms", "91.4 ms"]

    dates = ["2026-02-01 10:00", "2026-01-15 09:00", "2026-01-15.json", "2026-03.json", "2026-01-01"]
    in_order = tab.evaluate(
        """(texts) => {
          const table = document.querySelector("table.sortable:has(td[data-label='Host blocked per step'])");
          const head = [...table.tHead.rows[0].cells].find((one) => one.textContent === "Host blocked per step");
          const cells = () => [...table.tBodies[0].rows].map((row) => row.cells[head.cellIndex]);
          cells().forEach((cell, at) => { delete cell.dataset.sort; cell.textContent = texts[at]; });
          head.click();
          head.click();
          return cells().map((cell) => cell.textContent);
        }""",
        dates,
    )
    assert sorted(in_order) == in_order != dates


def test_a_link_leads_to_a_variant_and_unfolds_it(visit, pages):
    place = "#variant-ignore_index"
    text = "ignore_index"
    tab, *_ = visit(pages["gpu"], 1440, "light")
    assert tab.locator(f'a.variant[href="{place}"]').count() == 1
    tab.evaluate("document.querySelectorAll('details').forEach((block) => { block.open = false; })")
    tab.evaluate("(place) => { location.hash = place; }", place)
    target = tab.locator(":target")
    target.wait_for()
    assert text in target.inner_text()
    tab.wait_for_function("document.querySelector(':target').getBoundingClientRect().top < innerHeight")
    tab, *_ = visit(pages["gpu"], 1440, "light", place)
    tab.wait_for_function("document.querySelector(':target').getBoundingClientRect().top < innerHeight")
    assert tab.locator(":target").is_visible()


@pytest.mark.parametrize("width", [1280, 390])
def test_names_of_145_characters_without_a_break_do_not_widen_the_page(visit, study_builder, tmp_path, width):
    long = "x" * 145
    place = {"file": f"/{long}/{long}.py", "function": long, "op": long, "label": long, "code": long, "line": 1}
    fields = {
        "hypothesis": long,
        "predicted_sites": [{**place, "count_per_step": 2}],
        "syncs": {"predicted_per_step": 2},
        "noise": {"iqr_over_median": 0.2, "warnings": [long]},
    }
    for name in (long, f"{long}2"):
        study_builder.add(name, [20.0, 21.0], **fields)
    study_builder.comparison["findings"] = [
        {"rule": long, "severity": "high", "variant": long, "claim": long, "advice": long, "evidence": [long]}
    ]
    render_study(study_builder.write(), tmp_path / "long.html")
    tab, *_ = visit(tmp_path / "long.html", width)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_a_head_that_is_a_defined_term_shows_its_meaning_when_focused_and_hides_it_on_escape(visit, pages):
    tab, messages, _ = visit(pages["study"], 1280)
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
    assert messages == []


def test_hostile_data_does_nothing(visit, pages):
    tab, _, _ = visit(pages["study"], 1280)
    assert tab.locator("main script").count() == 0
    assert tab.get_by_text("<script>alert('x')</script>").count() > 0


def test_the_table_sorts_by_a_column_and_keeps_the_unmeasured_last(visit, pages):
    tab, _, _ = visit(pages["study"], 1280)
    table = ":is(details:has(> #variants), section:has(> #variants))"  # folded or not
    names = tab.locator(f"{table} tbody .variant")
    head = tab.locator(f"{table} thead th", has_text="Step time").first
    head.click()
    assert names.all_inner_texts()[:2] == ["boolean_mask", "ignore_index"]
    head.click()
    assert names.all_inner_texts()[:2] == ["ignore_index", "boolean_mask"]
    assert head.get_attribute("aria-sort") == "ascending"


def test_charts_are_seen_and_follow_the_theme(visit, pages):
    tab, _, _ = visit(pages["study"], 1280)
    chart = tab.locator("svg.chart").first
    tab.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert chart.bounding_box()["width"] > 300
    text = chart.locator("text", has_text="boolean_mask").first
    light = text.evaluate("e => getComputedStyle(e).fill")
    tab.emulate_media(color_scheme="dark")
    assert text.evaluate("e => getComputedStyle(e).fill") != light
