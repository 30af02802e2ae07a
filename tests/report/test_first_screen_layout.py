"""What a reader sees of a study's page before scrolling, in a real browser: on a phone and on a laptop."""

from pathlib import Path
from typing import Any

import pytest

from documents import an_estimate
from report.conftest import StudyBuilder, traced
from steptrace.report.study_page import render_study

pytestmark = pytest.mark.browser

PHONE = (390, 844)
TABLET = (768, 1024)
LAPTOP = (1440, 900)
KEEP = "Keep mask {} as a tensor, by torch.where(mask, a, b) or by a multiplication."
ADVICE = [
    {"rule": f"rule_{n}", "severity": "warning", "claim": "on a GPU the host would wait 6 times a step, by prediction; "
     "first at lab/steptrace/workloads/masked_losses.py:57", "cost_ns_per_step": 1_000_000,
     "source": {"file": "lab/steptrace/workloads/masked_losses.py", "line": 57}, "variant": "the_mask",
     "advice": f"{KEEP.format(n)} It is shorter. So is b.",
     "advice_parts": [KEEP.format(n), "It is shorter. So is b."]}
    for n in range(3)
]  # fmt: skip


@pytest.fixture(scope="module")
def study_of(tmp_path_factory):
    """The page of a study of so many variants, the last being the fastest, and so much advice; each is made once."""
    made: dict[tuple[int, int], Path] = {}

    def page(count: int, advice: int = 3) -> Path:
        if (count, advice) not in made:
            folder = tmp_path_factory.mktemp("first")
            builder = StudyBuilder(folder / "results", baseline="baseline_as_published")
            for n in range(count):
                ratio = {"value": 1.0, "verdict": "baseline"}
                if n:
                    ratio = {"value": 1 + n / 9, "low": 0.97 + n / 9, "high": 1.03 + n / 9, "verdict": "faster"}
                builder.add(
                    f"variant_{n}_of_them" if n else "baseline_as_published", [30 / (1 + n / 9)] * 3, ratio=ratio,
                    syncs={"predicted_per_step": 6}, trace=traced(30 / (1 + n / 9)),
                )  # fmt: skip
            builder.comparison["findings"] = ADVICE[:advice]
            builder.comparison["question"] = (
                "What does it cost to launch many small operators, and what do fewer of them gain?"
            )
            made[count, advice] = folder / "page.html"
            render_study(builder.write(), made[count, advice])
        return made[count, advice]

    return page


def opened(visit: Any, page: Path, size: tuple[int, int]) -> Any:
    tab, messages, _ = visit(page, size[0])
    tab.set_viewport_size({"width": size[0], "height": size[1]})
    assert messages == []
    return tab


def foot(tab: Any, selector: str, at: int = 0) -> float:
    """How far down an element ends, px; -1 is the last of those."""
    element = tab.locator(selector).nth(at)
    assert element.is_visible()
    box = element.bounding_box()
    return float(box["y"] + box["height"])


@pytest.mark.parametrize(
    ("size", "count", "advice"), [(PHONE, 5, 3), (PHONE, 7, 1), (LAPTOP, 5, 3), (LAPTOP, 11, 3), (LAPTOP, 15, 1)]
)
def test_verdict_axis_every_variant_and_advice_are_seen_without_scrolling(visit, study_of, size, count, advice):
    tab = opened(visit, study_of(count), size)
    assert tab.locator(".result > tbody > tr").count() == count
    height = size[1]
    assert foot(tab, ".question") < foot(tab, ".headline") < foot(tab, ".result svg.axis") < height
    assert foot(tab, ".result > tbody > tr .verdict", -1) < height
    for row in (0, -1):
        for cell in (".time", ".drawn svg", ".syncs", ".goes svg"):
            assert foot(tab, f".result > tbody {cell}", row) < height
    for n in range(advice):
        assert foot(tab, ".first summary", n) < height
    advice_is_first = foot(tab, ".first summary") < foot(tab, ".result > tbody .goes", -1)
    assert advice_is_first == (size == PHONE)


@pytest.mark.parametrize("count", [11, 15])
def test_of_many_variants_a_phone_shows_what_to_do_and_the_fastest_without_scrolling(visit, study_of, count):
    tab = opened(visit, study_of(count), PHONE)
    for n in range(3):
        assert foot(tab, ".first summary", n) < foot(tab, ".result svg.axis")
    assert foot(tab, ".result > tbody > tr.best .goes") < PHONE[1]


def test_on_a_phone_a_variant_without_a_profile_has_its_sampled_busy_time_in_place_of_a_bar(visit, tmp_path):
    builder = StudyBuilder(tmp_path / "results", baseline="base")
    builder.add("base", [30.0] * 3, ratio={"value": 1.0, "verdict": "baseline"}, trace=traced(30.0), gpu_busy_pct=61.0)
    builder.add("sampled", [20.0] * 3, ratio={"value": 1.5, "verdict": "faster"}, nvml_util_pct=87.0)
    render_study(builder.write(), tmp_path / "page.html")
    tab = opened(visit, tmp_path / "page.html", PHONE)
    rows = tab.locator(".result tbody > tr")
    shown = [[row.locator(cell).is_visible() for cell in (".goes", ".used")] for row in (rows.nth(0), rows.nth(1))]
    assert shown == [[True, False], [False, True]]
    assert "87" in rows.nth(1).locator(".used").inner_text()


def test_of_many_variants_a_phone_shows_the_baseline_and_the_fastest_first(visit, study_of):
    tab = opened(visit, study_of(11), PHONE)
    tops = tab.locator(".result > tbody > tr").evaluate_all("rows => rows.map((row) => row.getBoundingClientRect().y)")
    assert sorted(range(11), key=lambda row: tops[row])[:3] == [0, 10, 1]
    assert foot(tab, ".result > tbody > tr.best .goes") < PHONE[1]


@pytest.mark.parametrize(("size", "count"), [(PHONE, 5), (TABLET, 5), (LAPTOP, 5), (LAPTOP, 11)])
def test_all_rows_are_drawn_on_the_scale_of_the_axis_and_nothing_runs_over(visit, study_of, size, count):
    tab = opened(visit, study_of(count), size)
    spans = tab.locator(".result .drawn svg").evaluate_all(
        "all => all.map((svg) => svg.getBoundingClientRect()).map((at) => [at.left, at.right].map(Math.round))"
    )
    assert len(spans) == count + 1
    assert len({tuple(span) for span in spans}) == 1
    over = tab.locator(".result thead th, .result tbody > tr > *, .first li").evaluate_all(
        "all => all.filter((cell) => cell.scrollWidth > cell.clientWidth + 1).map((cell) => cell.className)"
    )
    assert over == []
    assert tab.evaluate("document.documentElement.scrollWidth") == size[0]


def test_on_a_phone_the_row_of_a_run_that_failed_keeps_inside_its_box(visit, tmp_path):
    builder = StudyBuilder(tmp_path / "results", baseline="base")
    builder.add("base", [30.0] * 3, ratio={"value": 1.0, "verdict": "baseline"}, gpu_busy_pct=6.7)
    builder.add("gone", [30.0] * 3, status="failed", step_ms=None, ratio=None)
    render_study(builder.write(), tmp_path / "page.html")
    tab = opened(visit, tmp_path / "page.html", PHONE)
    cells = tab.locator(".result tbody > tr > .used")
    assert "not measured" in cells.nth(1).inner_text()
    assert cells.evaluate_all("all => all.filter((cell) => cell.scrollWidth > cell.clientWidth + 1).length") == 0


def test_on_a_phone_an_estimate_beside_what_was_measured_is_readable(visit, tmp_path):
    """Also where nothing was estimated, or no trace was recorded."""
    builder = StudyBuilder(tmp_path / "results", baseline="base")
    builder.comparison["environment"] = {**builder.comparison["environment"], "gpu": "NVIDIA H100 80GB HBM3"}
    busy = {"launches": {"count": 450}, "quality": {"steps": 3}}
    for name, band, more in (("base", (38, 100), busy), ("fast", (380, 2900), busy), ("compiled", (None, None), None)):
        ratio = {"value": 1.0, "verdict": "baseline" if name == "base" else "same"}
        counts = {"kernels_per_step": 395.0} if more else {}
        trace = {**traced(30.0), **more} if more else None
        builder.add(
            name,
            [30.0] * 3,
            ratio=ratio,
            estimates=[an_estimate(*band)],
            trace=trace,
            peak_allocated_bytes=2**31,
            **counts,
        )
    render_study(builder.write(), tmp_path / "page.html")
    tab = opened(visit, tmp_path / "page.html", PHONE)
    tab.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    wide = "all => all.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.innerText.slice(0, 80))"
    assert tab.locator(".scroll:has(table)").evaluate_all(wide) == []
    overlapping = """rows => rows.flatMap((row) => {
        const cells = [...row.children].map((cell) => {
            const text = document.createRange();
            text.selectNodeContents(cell);
            return [cell.innerText, text.getBoundingClientRect()];
        }).filter(([words, at]) => words && at.width);
        return cells.flatMap(([one, a], n) => cells.slice(n + 1).filter(([, b]) =>
            a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 4 && b.top < a.bottom - 4
        ).map(([other]) => `${one} over ${other}`));
    })"""
    assert tab.locator("details tbody tr, .result > tbody > tr").evaluate_all(overlapping) == []


def test_on_a_phone_advice_is_a_line_each_until_it_is_opened(visit, study_of):
    tab = opened(visit, study_of(5), PHONE)
    first = tab.locator(".first details").first
    summary = first.locator("summary")
    claim = first.locator("p").first
    assert summary.bounding_box()["height"] < 30
    assert not claim.is_visible()
    summary.click()
    assert claim.is_visible()
    assert summary.bounding_box()["height"] > 30
    wide = opened(visit, study_of(5), LAPTOP)
    assert wide.locator(".first details p").first.is_visible()


def test_a_single_thing_to_do_is_open_even_below_the_first_screen(visit, study_of):
    tab = opened(visit, study_of(15, advice=1), LAPTOP)
    claim = tab.locator(".first details > p").first
    assert claim.is_visible()
    assert claim.bounding_box()["y"] > LAPTOP[1] - 100


def test_print_shows_what_to_do_first_with_its_reason(visit, study_of):
    """On paper nothing can be unfolded."""
    tab = opened(visit, study_of(5), PHONE)
    tab.emulate_media(media="print")
    assert tab.locator(".first details[open]").count() == 0
    claims = tab.locator(".first details > p:first-of-type")
    assert claims.evaluate_all("all => all.map((p) => p.getBoundingClientRect().height > 5)") == [True] * claims.count()
