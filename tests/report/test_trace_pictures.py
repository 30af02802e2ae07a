"""The pictures of a trace's page, and of several traces: which there are, and which facts stand in them."""

import base64
import gzip
import json
import random
import re
from pathlib import Path

import pytest

from documents import fill
from report.test_trace_page import trace, written
from steptrace.documents.subjects.modules import ModuleTime
from steptrace.documents.summary import Summary
from steptrace.report.charts.palette import COLOURS
from steptrace.report.trace import page as trace_page
from steptrace.words.pictures import NO_ROOM


def picture(page: str, kind: str) -> str:
    """The picture of a class; empty if there is none."""
    found = re.search(rf'<svg class="wide {kind}".*?</svg>(?=</div>)', page, re.DOTALL)
    return found.group() if found else ""


def tips(svg: str) -> list[str]:
    return re.findall("<title>(.*?)</title>", svg)


def boxes(*parts: str, kind: str = "stream") -> dict[str, object]:
    made = [{"start_ns": k * 1_000, "dur_ns": 1_000, "part": part, "name": f"k{k}"} for k, part in enumerate(parts)]
    return {"name": "Stream 7", "kind": kind, "boxes": made}


def test_the_first_screen_leads_with_question_answer_why_picture_and_what_to_do():
    page = written(trace(timeline={"step": 4, "span_ns": 10_000, "lanes": [boxes("compute", "copies")]}))
    marks = ('class="question"', 'class="headline', 'class="reasons"', 'class="lanes"', 'class="first"', 'class="toc"')
    places = [page.index(mark) for mark in marks]
    assert places == sorted(places)


def test_a_timeline_has_a_lane_for_each_row_and_no_section_of_its_own():
    lanes = [boxes("operator", kind="operators"), boxes("compute", "communication")]
    page = written(trace(timeline={"step": 4, "span_ns": 10_000, "lanes": lanes}))
    assert page.count('<div class="lane">') == 2
    assert 'id="timeline"' not in page
    assert [tip.split(":")[0] for tip in re.findall("<title>(k.*?)</title>", page)] == ["k0", "k0", "k1"]


@pytest.mark.parametrize(("streams", "told"), [(1, False), (9, True)])
def test_the_caption_says_which_streams_have_a_lane_where_not_all_have_one(streams, told):
    timeline = {"step": 4, "span_ns": 10_000, "lanes": [boxes("compute")]}
    rows = [{"device": 0, "stream": k, "host_wait_ns": 5, "kernel_wait_ns": 1, "other_ns": 0} for k in range(streams)]
    page = written(trace(timeline=timeline, idle={**trace()["idle"], "by_stream": rows}))
    caption = re.findall(r'role="status">(.*?)</p>', page)[0]
    assert ("9 streams" in caption) is told


def test_names_in_cautions_are_code():
    page = written(trace(timeline={"step": 4, "span_ns": 10_000, "lanes": [boxes("compute")]}))
    assert "`" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def with_steps(*parts: dict[str, int]) -> dict[str, object]:
    overview = trace()["overview"]
    by_step = [{"index": 10 + number, "parts_ns": of} for number, of in enumerate(parts)]
    return trace(overview={**overview, "by_step": by_step})


def test_each_step_is_a_bar_of_its_parts():
    svg = picture(written(with_steps({"compute": 5_000_000}, {"compute": 4_000_000, "idle_sync": 2_000_000})), "lying")
    assert len(tips(svg)) == 3
    assert f"var(--{COLOURS['idle_sync']})" in svg
    assert ">Step 10</text>" in svg
    assert ">Step 11</text>" in svg


def test_a_single_step_has_no_strip():
    assert picture(written(with_steps({"compute": 5_000_000})), "lying") == ""


def test_of_very_many_steps_the_longest_of_each_group_has_a_bar():
    steps = [{"compute": 9_000_000 if number == 777 else 5_000_000} for number in range(16_000)]
    page = written(with_steps(*steps))
    assert len(page.encode()) < 400_000
    tips_of_bars = tips(picture(page, "strip"))
    assert len(tips_of_bars) == 320
    assert [tip for tip in tips_of_bars if "9.00 ms" in tip]
    assert "16000" in page.partition('class="wide strip"')[0].rpartition('class="note"')[2]


def modules(*rows: dict[str, object]) -> list[object]:
    return [fill(ModuleTime, {"kind": "module", "modules": 1, "calls": 2, **row}) for row in rows]


def test_modules_are_an_icicle_with_repeated_layers_in_one_box_and_lines_below():
    net = {"path": "Net", "name": "Net", "parent": None, "device_ns": 8_000_000, "backward_ns": 4_000_000}
    layer = {"path": "Net / Layer", "name": "Layer", "parent": "Net", "device_ns": 6_000_000, "backward_ns": 3_000_000}
    layer |= {"modules": 12, "largest": "Layer_3", "largest_ns": 700_000, "smallest_ns": 400_000}
    line = {"path": "Net / Layer / a.py:3", "name": "a.py:3", "parent": "Net / Layer", "device_ns": 5_000_000}
    page = written(trace(modules=modules(net, layer, {**line, "kind": "line", "modules": None, "calls": None})))
    svg = picture(page, "icicle")
    assert re.findall(r"<text[^>]*>(.*?)</text>", svg) == ["Net", "Layer × 12", "a.py:3"]
    assert all(f"var(--{COLOURS[phase]})" in svg for phase in ("forward", "backward"))
    assert any("Layer_3" in tip for tip in tips(svg))


def test_modules_without_any_time_have_a_table_and_no_picture():
    page = written(trace(modules=modules({"path": "Net", "name": "Net", "parent": None, "device_ns": 0})))
    assert 'id="modules"' in page
    assert "icicle" not in page.split('id="modules"')[1]


def operator(**fields: object) -> dict[str, object]:
    row = {"name": "aten::mm", "inputs": "8x8 float32", "count": 2, "ns": 1_000_000, "ideal_ns": 500_000}
    return {**row, "roofline_pct": 50.0, "slowest_ns": 900_000, "because": "few_blocks", **fields}


def test_operators_with_their_work_are_points_and_without_it_a_table():
    page = written(trace(roofline=[operator(flop=1e9, bytes=1e7), operator(name="aten::add", flop=0.0, bytes=1e6)]))
    svg = picture(page, "scatter")
    assert svg.count("<circle") == 2
    assert ["aten::mm" in tip for tip in tips(svg)].count(True) == 1
    older = written(trace(roofline=[operator()]))
    assert picture(older, "scatter") == ""
    assert "aten::mm" in older


@pytest.fixture(scope="module")
def ranks():
    made = []
    for rank in (0, 1):
        steps = [{"index": index, "dur_ns": 9, "length_ns": (5 + rank) * 1_000_000} for index in (4, 5)]
        parts = {"compute": 6_000_000 + rank * 3_000_000, "idle_host": 6_000_000}
        overview = {"kind": "gpu", "steps": 2, "window_ns": sum(parts.values()), "parts_ns": parts, "operators": []}
        made.append(trace(rank=rank, path=f"rank{rank}.json", steps=steps, overview=overview))
    return written(*made)


def test_ranks_stand_side_by_side_and_each_step_of_each_is_in_the_heat_map(ranks):
    assert len(tips(picture(ranks, "lying"))) == 4
    assert ">Rank 1</text>" in picture(ranks, "lying")
    assert len(tips(picture(ranks, "heat-map"))) == 4


@pytest.mark.browser
@pytest.mark.parametrize("count", [2, 40])
def test_on_a_phone_the_names_of_bars_lie_on_nothing(visit, tmp_path, count):
    made = []
    for rank in range(count):
        parts = {"compute": 6_000_000 + rank * 3_000, "idle_host": 6_000_000}
        overview = {"kind": "gpu", "steps": 2, "window_ns": sum(parts.values()), "parts_ns": parts, "operators": []}
        made.append(trace(rank=rank, path=f"rank{rank}.json", overview=overview))
    file = tmp_path / "page.html"
    file.write_text(written(*made))
    tab, *_ = visit(file, 390)
    boxes = tab.locator("svg.lying text, svg.strip text").evaluate_all(
        "all => all.map((one) => one.getBoundingClientRect()).filter((at) => at.width)"
        ".map((at) => [at.left, at.top, at.right, at.bottom])"
    )
    assert len(boxes) >= 4
    for number, (left, top, right, bottom) in enumerate(boxes):
        assert right <= 391
        for other in boxes[number + 1 :]:
            apart = other[0] >= right or other[2] <= left or other[1] >= bottom - 3 or other[3] <= top + 3
            assert apart, (boxes[number], other)


def test_of_each_part_the_rank_with_the_least_and_the_most_is_named(ranks):
    table = ranks[ranks.index("Part of the step") :]
    rows = re.findall(r"<tr>(.*?)</tr>", table[: table.index("</table>")], re.DOTALL)
    cells = [re.sub("<[^>]+>", "|", row) for row in rows]
    compute = next(row for row in cells if "compute" in row)
    assert re.findall(r"Rank \d", compute) == ["Rank 0", "Rank 1"]
    assert re.findall(r"\d+ %", compute)[0] == "50 %"


def test_the_page_of_a_trace_carries_its_step_as_a_trace_to_download(tmp_path):
    excerpt = tmp_path / "step.json.gz"
    kept = {"steptraceExcerpt": {"events": 2, "of_events": 5}, "traceEvents": []}
    excerpt.write_bytes(gzip.compress(json.dumps(kept).encode()))
    timeline = {"step": 4, "span_ns": 10_000, "lanes": [boxes("compute")]}
    summary = fill(Summary, {"traces": [trace(timeline=timeline, path="runs/mine.json.gz")]})
    trace_page.write(summary, tmp_path / "report.html", excerpt=excerpt)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    name, data = re.findall(r'<a download="(.*?)" href="data:application/gzip;base64,(.*?)"', page)[0]
    assert name == "mine-step.json.gz"
    assert base64.b64decode(data) == excerpt.read_bytes()
    trace_page.write(summary, tmp_path / "report.html")
    assert "<a download" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def page_with_excerpt(folder: Path, size: int, step: int | None = 4) -> str:
    """The page of a trace that carries an excerpt of about so many bytes, with the longest events of its step."""
    kept = {"steptraceExcerpt": {"events": 2, "of_events": 5}, "traceEvents": []}
    noise = random.Random(0).randbytes(size).hex()
    (folder / "step.json.gz").write_bytes(gzip.compress(json.dumps({**kept, "noise": noise}).encode()))
    timeline = {"step": step, "span_ns": 10_000, "lanes": [boxes("compute")]}
    summary = fill(Summary, {"traces": [trace(timeline=timeline)]})
    trace_page.write(summary, folder / "report.html", excerpt=folder / "step.json.gz")
    return (folder / "report.html").read_text(encoding="utf-8")


def folded_sections(page: str) -> list[str]:
    return re.findall(r'<h3 id="(\w+)"', page[page.index('id="tables"') :]) if 'id="tables"' in page else []


def test_a_page_that_would_be_too_large_leaves_out_its_largest_tables_and_at_last_the_small_trace(tmp_path):
    small = page_with_excerpt(tmp_path, 0)
    tables = folded_sections(small)
    assert len(tables) > 1
    room = trace_page.MOST_BYTES - len(small.encode())
    fewer = page_with_excerpt(tmp_path, room * 2 // 3)
    assert set(folded_sections(fewer)) < set(tables)
    assert "<a download" in fewer
    assert NO_ROOM in fewer
    none = page_with_excerpt(tmp_path, trace_page.MOST_BYTES)
    assert "<a download" not in none
    assert all(len(page.encode()) < trace_page.MOST_BYTES for page in (small, fewer, none))


@pytest.mark.parametrize(("step", "is_offered"), [(4, True), (None, False)])
def test_all_events_of_a_step_are_offered_and_those_of_a_trace_without_steps_are_the_trace(tmp_path, step, is_offered):
    note = page_with_excerpt(tmp_path, 0, step).split("<a download", 1)[1]
    assert ("--excerpt" in note.split("</p>", 1)[0]) == is_offered


@pytest.mark.browser
def test_a_lane_goes_from_box_to_box_by_keyboard_and_says_what_each_is(visit, tmp_path):
    page = tmp_path / "report.html"
    timeline = {"step": 4, "span_ns": 10_000, "lanes": [boxes("compute", "copies", "compute")]}
    page.write_text(written(trace(timeline=timeline)), encoding="utf-8")
    tab, messages, _ = visit(page, 1440)
    said = []
    tab.locator(".lane").focus()
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"):
        tab.keyboard.press(key)
        said.append(tab.locator(".readout").inner_text().split(":")[0])
    assert said == ["k0", "k1", "k2", "k2", "k1"]
    assert tab.locator("#tip").is_visible()
    tab.keyboard.press("Escape")
    assert not tab.locator("#tip").is_visible()
    assert messages == []


@pytest.mark.browser
def test_paper_is_light_and_shows_the_timeline_wherever_the_page_is_dark(visit, tmp_path):
    page = tmp_path / "report.html"
    timeline = {"step": 4, "span_ns": 10_000, "lanes": [boxes("compute", "copies")]}
    page.write_text(written(trace(timeline=timeline)), encoding="utf-8")
    tab, *_ = visit(page, 1440, "dark")
    ink = "getComputedStyle(document.body).color"
    on_screen = tab.evaluate(ink)
    tab.emulate_media(media="print", color_scheme="dark")
    on_paper = tab.evaluate(ink)
    tab.emulate_media(media="screen")
    assert sum(map(int, re.findall(r"\d+", on_paper))) < 200 < sum(map(int, re.findall(r"\d+", on_screen)))


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_what_to_do_is_behind_the_picture_on_the_first_screen(visit, tmp_path, width):
    page = tmp_path / "report.html"
    lanes = [boxes("compute", "copies") for _ in range(8)]
    timeline = {"step": 4, "span_ns": 10_000, "lanes": lanes}
    page.write_text(written(trace(timeline=timeline)), encoding="utf-8")
    tab, *_ = visit(page, width)
    picture, first = (tab.locator(name).bounding_box() for name in (".lanes", ".first"))
    assert picture["y"] + picture["height"] <= first["y"]
    assert first["y"] < 844
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.browser
def test_a_box_says_what_it_is_when_pointed_at(visit, tmp_path):
    page = tmp_path / "report.html"
    timeline = {"step": 4, "span_ns": 10_000, "lanes": [boxes("compute", "copies")]}
    page.write_text(written(trace(timeline=timeline)), encoding="utf-8")
    tab, *_ = visit(page, 1440)
    tab.locator(".lane g rect").nth(1).hover()
    assert tab.locator("#tip").inner_text().startswith("k1:")
