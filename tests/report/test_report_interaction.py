"""What a reader can do on a page, in a real browser: wide and light, narrow and dark."""

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.browser,
    pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")]),
]

EVERYTHING = """() => {
  const parts = [...document.querySelectorAll("main summary, main button, main th.sort, main input[type=checkbox]")];
  for (const part of parts) part.click();
  return parts.length;
}"""


@pytest.mark.parametrize("name", ["study", "gpu", "cpu", "matrix", "index", "trace", "cpu_trace", "results", "diff"])
def test_all_that_can_be_clicked_works_without_an_error_or_a_request(
    visit: Any, pages: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    tab, said, asked = visit(pages[name], width, scheme)
    assert tab.evaluate(EVERYTHING) > 0
    assert tab.evaluate(EVERYTHING) > 0
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert (said, asked) == ([], [])


def row_of(tab: Any, table: str, name: str) -> str:
    """The words of a variant's row."""
    return " ".join(tab.locator(f"table.{table} > tbody > tr", has_text=name).first.inner_text().split())


def test_another_baseline_changes_ratios_intervals_and_verdicts_and_the_own_one_brings_them_back(
    visit: Any, pages: dict[str, Path], width: int, scheme: str
) -> None:
    tab, said, _ = visit(pages["gpu"], width, scheme)
    before = [row_of(tab, table, name) for table in ("result", "variants") for name in ("boolean_mask", "ignore_index")]
    ends = {1440: (" (3.87 to 3.97)", " (0.252 to 0.258)"), 390: ("", "")}[width]  # on a phone the interval is drawn
    assert f"3.92×{ends[0]}" in before[1]
    line = tab.locator("table.result tr", has_text="ignore_index").locator("svg line.baseline")
    place = line.get_attribute("x1")
    chooser = tab.locator(".compare-tools select")
    chooser.select_option("ignore_index")
    assert "slower" in row_of(tab, "result", "boolean_mask")
    assert f"0.255×{ends[1]}" in row_of(tab, "result", "boolean_mask")
    assert "0.255×" in row_of(tab, "variants", "boolean_mask")
    assert "baseline" in row_of(tab, "variants", "ignore_index")
    assert "differs" in row_of(tab, "variants", "ignore_index")
    assert line.get_attribute("x1") != place
    assert "against ignore_index" in tab.locator(".rebased").inner_text()
    chooser.select_option("boolean_mask")
    after = [row_of(tab, table, name) for table in ("result", "variants") for name in ("boolean_mask", "ignore_index")]
    assert after == before
    assert not tab.locator(".rebased").is_visible()
    assert said == []


def test_without_computed_pairs_the_ratio_stands_alone(
    visit: Any, pages: dict[str, Path], width: int, scheme: str
) -> None:
    tab, *_ = visit(pages["cpu"], width, scheme)
    tab.locator(".compare-tools select").select_option("ignore_index")
    row = row_of(tab, "result", "sort")
    assert "not computed" in row
    assert "0.703×" in row
    assert "not computed" in tab.locator(".rebased").inner_text()


def test_a_hidden_variant_is_gone_from_tables_charts_blocks_and_findings_until_it_is_shown_again(
    visit: Any, pages: dict[str, Path], width: int, scheme: str
) -> None:
    tab, *_ = visit(pages["gpu"], width, scheme)
    rows = tab.locator("table.result > tbody > tr, table.variants > tbody > tr", has_text="where")
    finding = tab.locator("li.finding", has_text="launch bound")
    block = tab.locator("details.block > summary", has_text="where")
    assert (rows.count(), finding.is_visible()) == (2, True)
    assert block.count() == 1
    tab.locator("summary", has_text="Show variants").click()
    box = tab.get_by_label("where", exact=True)
    box.uncheck()
    drawn = tab.locator('svg [data-variant="where"]')
    assert drawn.count() > 1
    heading = tab.get_by_role("heading", name="where", exact=True, include_hidden=True)
    own = tab.locator("figure, .charts > div").filter(has=heading)
    places = [rows.nth(0), rows.nth(1), finding, block.first, drawn.nth(0), drawn.nth(1)]
    tab.evaluate("document.querySelectorAll('details').forEach((block) => { block.open = true; })")
    assert own.count() > 0
    assert [place.is_visible() for place in [*places, own.first]] == [False] * 7
    box.check()
    assert [place.is_visible() for place in [*places, own.first]] == [True] * 7


def test_a_block_of_several_variants_is_hidden_with_the_last_of_them(
    visit: Any, pages: dict[str, Path], width: int, scheme: str
) -> None:
    tab, *_ = visit(pages["matrix"], width, scheme)
    block = tab.locator("details.block[data-variants]").nth(1)  # the first one is about the baseline, too
    names = json.loads(block.get_attribute("data-variants") or "")
    tab.locator("summary", has_text="Show variants").click()
    seen = []
    for name in names:
        tab.get_by_label(name, exact=True).uncheck()
        seen.append(block.is_visible())
    assert seen == [True] * (len(names) - 1) + [False]
    tab.get_by_label(names[-1], exact=True).check()
    assert block.is_visible()


def test_rows_are_filtered_and_what_is_left_is_copied_as_csv_and_markdown(
    visit: Any, pages: dict[str, Path], width: int, scheme: str
) -> None:
    tab, said, _ = visit(pages["matrix"], width, scheme, permissions=("clipboard-read", "clipboard-write"))
    tools = tab.locator(".scroll:has(> table.variants) + .table-tools")
    tools.get_by_label("Filter the rows").fill("ignore_index")
    assert tools.get_by_role("status").inner_text() == "3 of 12 rows"
    assert not tab.locator("table.variants > tbody > tr:not(.group-row)", has_text="sort-").first.is_visible()
    tools.get_by_text("Copy as CSV").click()
    tools.get_by_text("copied").wait_for()
    csv = tab.evaluate("navigator.clipboard.readText()").split("\n")
    assert csv[0].startswith("Variant,Step time,p95,Ratio,Verdict")
    assert [line.split("-")[0] for line in csv[1:]] == ["ignore_index"] * 3
    tools.get_by_text("Copy as Markdown").click()
    tab.wait_for_function("navigator.clipboard.readText().then((text) => text.startsWith('|'))")
    markdown = tab.evaluate("navigator.clipboard.readText()").split("\n")
    assert markdown[1].startswith("| --- | ---: |")
    assert len(markdown) == 5
    assert said == []


def test_a_closed_clipboard_leaves_the_text_to_be_copied_by_hand(
    visit: Any, pages: dict[str, Path], width: int, scheme: str
) -> None:
    tab, *_ = visit(pages["gpu"], width, scheme)
    tab.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('closed')); }")
    tools = tab.locator(".scroll:has(> table.variants) + .table-tools")
    tools.get_by_text("Copy as Markdown").click()
    field = tools.get_by_label("the table, to be copied")
    field.wait_for()
    assert field.input_value().startswith("| Variant | Step time |")


def test_sorting_by_keyboard_puts_numbers_in_order_whatever_their_unit_and_dates_as_text(
    visit: Any, pages: dict[str, Path], width: int, scheme: str
) -> None:
    tab, *_ = visit(pages["gpu"], width, scheme)
    # Heads are not shown on a narrow screen, where rows are cards; they can still be used by a script.
    tab.evaluate("""() => {
      const heads = document.querySelectorAll("table.sites thead th");
      const head = [...heads].find((one) => one.textContent === "Host blocked");
      head.dispatchEvent(new KeyboardEvent("keydown", { key: " ", cancelable: true }));
      head.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", cancelable: true }));
    }""")
    cells = tab.locator("table.sites").first.locator("tbody td[data-label='Host blocked']").all_inner_texts()
    assert cells == ["200 µs", "400 µs", "1.20 ms", "2.10 ms", "91.4 ms"]

    dates = ["2026-02-01 10:00", "2026-01-15 09:00", "2026-01-15.json", "2026-03.json", "2026-01-01"]
    in_order = tab.evaluate(
        """(texts) => {
          const table = document.querySelector("table.sites");
          const head = [...table.tHead.rows[0].cells].find((one) => one.textContent === "Host blocked");
          const cells = () => [...table.tBodies[0].rows].map((row) => row.cells[head.cellIndex]);
          cells().forEach((cell, at) => { delete cell.dataset.sort; cell.textContent = texts[at]; });
          head.click();
          head.click();
          return cells().map((cell) => cell.textContent);
        }""",
        dates,
    )
    assert sorted(in_order) == in_order != dates


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("#finding-host_sync-boolean_mask", "The host waits 91.4 ms"),
        ("#variant-ignore_index", "ignore_index"),
        ("#site-where-steptrace%2Fworkloads%2Fmasked_losses.py%3A57", "masked_losses.py:57"),
    ],
)
def test_a_link_leads_to_a_finding_a_variant_or_a_site_and_unfolds_it(
    visit: Any, pages: dict[str, Path], place: str, text: str, width: int, scheme: str
) -> None:
    tab, *_ = visit(pages["gpu"], width, scheme)
    assert tab.locator(f'a.link[href="{place}"]').count() == 1
    tab.evaluate("document.querySelectorAll('details').forEach((block) => { block.open = false; })")
    tab.evaluate("(place) => { location.hash = place; }", place)
    target = tab.locator(":target")
    target.wait_for()
    assert text in target.inner_text()
    tab.wait_for_function("document.querySelector(':target').getBoundingClientRect().top < innerHeight")
    tab, *_ = visit(pages["gpu"], width, scheme, place)
    tab.wait_for_function("document.querySelector(':target').getBoundingClientRect().top < innerHeight")
    assert tab.locator(":target").is_visible()


def test_the_index_charts_past_results(visit: Any, pages: dict[str, Path], width: int, scheme: str) -> None:
    tab, *_ = visit(pages["index"], width, scheme)
    after_name = "element => getComputedStyle(element, '::after').content"
    assert tab.locator(".entry p.note > .variant").first.evaluate(after_name) == '" · "'
    row = " ".join(tab.locator("table.past tbody tr", has_text="ignore_index").inner_text().split())
    assert row.startswith("ignore_index 11.5 ms")
    assert row.endswith("10.4 ms 1.10×")
    picture = tab.locator("table.past tbody tr", has_text="ignore_index").locator("svg")
    assert picture.get_attribute("aria-label").startswith("ignore_index over time. january, 2026-01-05: 11.5 ms, now: ")
    assert picture.locator("circle").count() == 2
