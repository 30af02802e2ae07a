"""The geometry of each kind of picture: where its boxes, points and letters lie."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from steptrace.documents.timeline import Box, Lane, Timeline
from steptrace.report.charts.cells import Piece
from steptrace.report.charts.heat_map import heat_map
from steptrace.report.charts.icicle import Branch, icicle
from steptrace.report.charts.lanes import lanes, parts_to_key
from steptrace.report.charts.lines import Point, Series, lines
from steptrace.report.charts.palette import COLOURS, NEUTRAL, colour_of
from steptrace.report.charts.scale import Scale
from steptrace.report.charts.scatter import Axis, Dot, scatter
from steptrace.report.charts.strip import Bar, lying, parted_bars, strip
from steptrace.report.page.markup import STYLES


def drawn(picture: str, tag: str) -> list[ET.Element]:
    """The elements of a kind, in their order."""
    return [element for element in ET.fromstring(picture).iter(tag) if element.get("role") is None]


def across(element: ET.Element, name: str) -> float:
    """A place across, as a share of the picture's width."""
    return float(element.attrib[name].removesuffix("%")) / 100


def down(element: ET.Element, name: str) -> float:
    return float(element.attrib[name])


def picture_of(*boxes: Box, kind: str = "stream") -> ET.Element:
    """The whole picture of a step of 1 ms with one lane."""
    lane = Lane(name="a <b>", kind=kind, boxes=boxes)
    return ET.fromstring(f"<div>{lanes(Timeline(step=1, span_ns=1_000_000, lanes=(lane,)), 'c')}</div>")


def test_a_box_of_a_lane_lies_where_it_ran_and_is_as_wide_as_its_share_of_the_step():
    lane = picture_of(Box(250_000, 500_000, "compute", "gemm", file="a/model.py", line=7))
    (box,) = lane.findall(".//g/rect")
    assert (across(box, "x"), across(box, "width")) == (0.25, 0.5)
    for word in ("gemm", "500", "model.py:7"):
        assert word in (box.findtext("title") or "")


def test_what_ran_for_a_moment_is_seen_and_a_sync_is_seen_from_afar():
    moment = [picture_of(Box(0, 1, "compute"), kind=kind).find(".//g/rect") for kind in ("stream", "syncs")]
    shown, sync = (across(box, "width") for box in moment if box is not None)
    assert 0.0003 < shown < sync < 0.01


def test_boxes_of_one_colour_stand_together_and_wide_ones_have_their_name_inside():
    picture = picture_of(Box(0, 400_000, "compute", "long"), Box(400_000, 9, "copies"), Box(500_000, 9, "compute"))
    assert [group.get("fill") for group in picture.findall(".//g")] == ["var(--blue)", "var(--purple)"]
    assert [name.text for name in picture.findall(".//svg/svg/text")] == ["long"]


def test_a_lane_has_its_name_and_the_picture_its_caption():
    picture = picture_of(Box(0, 400_000, "compute"))
    assert [row.text for row in picture.findall(".//b")] == ["a <b>"]
    assert picture.findtext(".//p[@role='status']") == "c"


def test_a_colour_in_lanes_is_in_the_key_unless_a_name_says_it_or_a_picture_above_has_it():
    """Rank 0 of TorchRec's trace waits for other ranks for 1 % of its step, in a colour of its own."""
    boxes = (
        Box(0, 500_000, "compute"),
        Box(500_000, 10_000, "exposed_wait"),
        Box(510_000, 4_000, "idle_dependency"),
        Box(520_000, 20_000, "idle_host"),
        Box(540_000, 90_000, "operator", "aten::mm"),
        Box(640_000, 30_000, "copies", "Memcpy HtoD"),
        Box(680_000, 30_000, "exposed_memory"),
    )
    lane = Lane("GPU", "gpu", boxes)
    syncs = Lane("Syncs", "syncs", (Box(0, 90_000, "sync"),))
    step = Timeline(step=1, span_ns=1_000_000, lanes=(lane, syncs))
    assert parts_to_key(step, []) == ["exposed_wait", "idle_host", "copies"]
    assert parts_to_key(step, ["exposed_memory", "idle_host"]) == ["exposed_wait"]


def test_a_bar_of_the_strip_is_as_high_as_its_share_of_the_longest_and_its_parts_stand_on_each_other():
    bars = [Bar("1", [Piece(3e6, "blue", "a"), Piece(1e6, "vermillion", "b")]), Bar("2", [Piece(2e6, "blue", "c")])]
    lower, upper, second = drawn(strip(bars, "x"), "rect")
    assert down(lower, "height") == pytest.approx(3 * down(upper, "height"), abs=0.2)
    assert down(upper, "y") + down(upper, "height") == pytest.approx(down(lower, "y"), abs=0.1)
    assert down(second, "y") + down(second, "height") == pytest.approx(
        down(lower, "y") + down(lower, "height"), abs=0.1
    )
    assert down(second, "height") == pytest.approx((down(lower, "height") + down(upper, "height")) / 2, abs=0.2)
    assert across(second, "x") >= across(lower, "x") + across(lower, "width")


def test_a_lying_bar_is_as_wide_as_its_share_of_the_longest_and_its_parts_follow_each_other():
    bars = [Bar("1", [Piece(3e6, "blue", "a"), Piece(1e6, "vermillion", "b")]), Bar("2", [Piece(2e6, "blue", "c")])]
    first, then, second = drawn(lying(bars, "x"), "rect")
    assert across(first, "width") == pytest.approx(3 * across(then, "width"), abs=1e-3)
    assert across(then, "x") == pytest.approx(across(first, "x") + across(first, "width"), abs=1e-3)
    assert across(then, "x") + across(then, "width") == pytest.approx(1.0, abs=1e-3)  # the longest fills the width
    assert across(second, "width") == pytest.approx(0.5, abs=1e-3)
    assert down(second, "y") >= down(first, "y") + down(first, "height")
    names = [text.text for text in drawn(lying(bars, "x"), "text")]
    assert names == ["1", "4.00 ms", "2", "2.00 ms"]


def test_few_bars_lie_and_more_stand():
    bars = [Bar(str(number), [Piece(1e6, "blue", "x")]) for number in range(7)]
    for count, lies in ((2, True), (6, True), (7, False)):
        heights = [down(box, "height") for box in drawn(parted_bars(bars[:count], "x", what="Step"), "rect")]
        widths = [across(box, "width") for box in drawn(parted_bars(bars[:count], "x", what="Step"), "rect")]
        assert (max(widths) > 0.5) is lies
        assert (max(heights) < 40) is lies
    assert "Step 0" in parted_bars(bars[:2], "x", what="Step")


def test_a_part_that_is_too_low_to_be_seen_has_no_box_in_a_strip():
    bars = [Bar("a", [Piece(1_000_000, "blue", "long"), Piece(100, "wine", "short"), Piece(500_000, "sky", "above")])]
    low, high = drawn(strip(bars, "x"), "rect")
    assert down(low, "height") == pytest.approx(2 * down(high, "height"), abs=0.2)


def test_a_strip_of_many_steps_stays_within_its_width_and_names_some():
    bars = [Bar(str(number), [Piece(1e6, "blue", "x")]) for number in range(200)]
    picture = strip(bars, "x")
    assert all(across(box, "x") + across(box, "width") <= 1.0001 for box in drawn(picture, "rect"))
    names = [text for text in drawn(picture, "text") if down(text, "y") > 170]
    assert 2 < len(names) <= 16
    assert names[-1].get("text-anchor") == "end"  # it would reach out of the picture


def test_children_of_an_icicle_lie_below_their_parent_side_by_side():
    tree = Branch("a", 4, "a", children=[Branch("b", 1, "b"), Branch("c", 2, "c", children=[Branch("d", 2, "d")])])
    by_name = {box.findtext("text"): box for box in drawn(icicle([tree], "x"), "svg")}
    assert {name: across(box, "width") for name, box in by_name.items()} == {"a": 1, "b": 0.25, "c": 0.5, "d": 0.5}
    assert across(by_name["c"], "x") == 0.25 == across(by_name["d"], "x")
    tops = [down(by_name[name], "y") for name in "abcd"]
    assert tops[0] < tops[1] == tops[2] < tops[3]


def test_what_a_branch_is_made_of_is_a_line_within_its_box():
    box, *parts = drawn(icicle([Branch("", 4, "a", parts=[(1, "lavender"), (3, "indigo")])], "x"), "rect")
    assert [(across(part, "x"), across(part, "width")) for part in parts] == [(0, 0.25), (0.25, 0.75)]
    assert all(down(part, "y") + down(part, "height") == down(box, "y") + down(box, "height") for part in parts)


def test_a_deep_tree_is_drawn():
    tree = Branch("leaf", 1, "leaf")
    for _ in range(600):
        tree = Branch("", 1, "x", children=[tree])
    assert len(drawn(icicle([tree], "x"), "rect")) == 601


def test_a_point_of_a_scatter_lies_right_of_and_above_one_with_smaller_values():
    axis = Axis("x", Scale(1, 100, log=True))
    small, large = drawn(scatter([Dot(2, 2, 3, "blue", "a"), Dot(20, 20, 3, "blue", "b")], axis, axis, "x"), "circle")
    assert across(small, "cx") < across(large, "cx")
    assert down(small, "cy") > down(large, "cy")


def test_a_line_through_the_corners_of_a_scatter_passes_through_the_middle():
    axis = Axis("x", Scale(1, 100, log=True))
    picture = scatter([Dot(10, 10, 3, "blue", "a")], axis, axis, "x", lines=[[(1, 1), (100, 100)]])
    (dot,) = drawn(picture, "circle")
    line = drawn(picture, "line")[-1]
    middle = (across(line, "x1") + across(line, "x2")) / 2, (down(line, "y1") + down(line, "y2")) / 2
    assert (across(dot, "cx"), down(dot, "cy")) == pytest.approx(middle, abs=0.1)


def test_a_heat_map_is_darkest_at_the_largest_value_and_empty_where_nothing_was_measured():
    values = [[1.0, 2.0], [None, 3.0]]
    boxes = drawn(heat_map(["a", "b"], ["1", "2"], values, [["1", "2"], ["", "3"]], "x"), "rect")
    assert len(boxes) == 3
    opacities = [float(box.get("fill-opacity", 1)) for box in boxes]
    assert opacities[0] < opacities[1] < opacities[2] == 1
    assert across(boxes[1], "x") == across(boxes[2], "x")
    assert down(boxes[2], "y") > down(boxes[1], "y")


@pytest.mark.parametrize(
    "empty", [lambda: strip([], "x"), lambda: icicle([], "x"), lambda: heat_map([], [], [], [], "x")]
)
def test_a_picture_of_nothing_is_refused(empty):
    with pytest.raises(ValueError, match="needs"):
        empty()


def test_a_colour_stands_for_one_thing():
    """Names for the same thing share a colour: a GPU's and the host's, hidden or not."""
    same = [
        {"exposed_comm", "exposed_transfer", "communication"},
        {"exposed_memory", "copies"},
        {"sync", "idle_sync"},
        {"data", "idle_loader"},
    ]
    by_colour: dict[str, set[str]] = {}
    for part, colour in COLOURS.items():
        by_colour.setdefault(colour, set()).add(part)
    assert [parts for parts in by_colour.values() if len(parts) > 1] == same
    assert colour_of("aten::mm") == NEUTRAL


def test_each_colour_is_in_the_style_sheet_in_light_and_in_dark_and_has_a_key():
    style = "".join(file.read_text() for file in STYLES)
    for colour in {*COLOURS.values(), NEUTRAL}:
        assert style.count(f"--{colour}: ") == 2, colour
        assert colour == NEUTRAL or f".key.{colour}::before" in style, colour


def test_a_point_of_a_line_lies_in_its_column_and_higher_where_its_value_is_larger():
    series = [
        Series("a", [Point(1.0, None, "x"), Point(4.0, (3.0, 5.0), "x")]),
        Series("b", [None, Point(2.0, None, "x")]),
    ]
    picture = lines(["4", "16"], series, Scale(0, 10, log=False), "x")
    first, second, other = drawn(picture, "circle")
    assert across(first, "cx") < across(second, "cx") == across(other, "cx")
    assert down(second, "cy") < down(other, "cy") < down(first, "cy")
    whisker = next(line for line in drawn(picture, "line") if line.attrib["x1"] == line.attrib["x2"])
    assert down(whisker, "y1") > down(second, "cy") > down(whisker, "y2")
    names = [text.text for text in drawn(picture, "text") if text.get("text-anchor") == "middle"]
    assert names == ["4", "16"]


def test_names_of_lines_that_end_at_one_place_do_not_cover_each_other_and_stay_in_the_picture():
    series = [Series(f"line {n}", [Point(0.0, None, "x")]) for n in range(5)]
    picture = lines(["4"], series, Scale(0, 10, log=False), "x")
    heights = sorted(down(text, "y") for text in drawn(picture, "text") if text.get("class") == "name")
    assert len(heights) == 5
    assert all(below - above >= 13 for above, below in pairwise(heights))
    assert heights[-1] <= float(ET.fromstring(picture).attrib["height"])


def test_lines_need_a_point_for_each_column():
    with pytest.raises(ValueError, match="2 points"):
        lines(["4", "16"], [Series("a", [None])], Scale(0, 1, log=False), "x")
    with pytest.raises(ValueError, match="need a point"):
        lines(["4"], [Series("a", [None])], Scale(0, 1, log=False), "x")


def test_idle_time_in_a_lane_is_a_thin_line_without_a_name_and_work_beside_it_is_not():
    picture = picture_of(Box(0, 400_000, "compute", "long"), Box(400_000, 600_000, "idle_host"), kind="gpu")
    thin = {group.get("fill"): group.get("class") for group in picture.findall(".//g")}
    assert thin == {"var(--blue)": None, "var(--sky)": "idle"}
    assert [name.text for name in picture.findall(".//svg/svg/text")] == ["long"]


def test_names_of_points_that_lie_on_each_other_are_written_once_and_names_apart_are_all_written():
    axis = Axis("x", Scale(1, 100, log=True))
    dots = [Dot(x, y, 3, "blue", "tip", name) for x, y, name in ((80, 20, "a"), (81, 20.1, "b"), (80, 90, "c"))]
    names = [text.text for text in drawn(scatter(dots, axis, axis, "x"), "text")]
    assert [name for name in names if name in {"a", "b", "c"}] == ["a", "c"]


def test_a_name_that_would_lie_on_a_smaller_point_is_left_to_the_tooltip():
    """As aten::addmm of BERT on an H100 did, whose largest point has another one a little further right."""
    axis = Axis("x", Scale(1, 100, log=True))
    dots = [Dot(x, y, 6, "blue", "tip", name) for x, y, name in ((10, 20, "aten::addmm"), (11, 21, ""), (2, 90, "b"))]
    names = [text.text for text in drawn(scatter(dots, axis, axis, "x"), "text")]
    assert [name for name in names if name in {"aten::addmm", "b"}] == ["b"]


def test_a_key_has_the_colour_of_what_it_names():
    assert "opacity" not in re.search(r"\.key::before \{([^}]*)\}", STYLES[0].read_text(encoding="utf-8"))[1]
