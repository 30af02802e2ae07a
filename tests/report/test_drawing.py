"""Pictures as SVG: what is written is well-formed, escaped, short, and in the colours of the page."""

import re
import xml.etree.ElementTree as ET

import pytest

from documents import fill
from steptrace.documents.memory import DeviceMemory
from steptrace.documents.timeline import Timeline
from steptrace.report.draw import Drawing, Piece, bar_cell, ticks, timeline_figure
from steptrace.report.page.parts import keyed_bar
from steptrace.report.trace.memory import memory_curve


def test_names_are_escaped_and_coordinates_short():
    drawing = Drawing(50)
    drawing.rect((1 / 3, 2), (10, 5), "blue")
    drawing.text((0, 10), "a < b & 0.123456 > c", "name")
    text = drawing.svg('so and "so"')
    root = ET.fromstring(text)
    assert root.attrib["aria-label"] == 'so and "so"'
    assert root[0].attrib["fill"] == "var(--blue)"
    assert root[1].text == "a < b & 0.123456 > c"
    assert not re.search(r'="[^"]*\d\.\d{3}', text)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((0, 10), [0, 2, 4, 6, 8, 10]),
        ((0, 0.7), [0, 0.2, 0.4, 0.6]),
        ((931, 1013), [940, 960, 980, 1000]),
        ((0, 3e9), [0, 5e8, 1e9, 1.5e9, 2e9, 2.5e9, 3e9]),
    ],
)
def test_ticks_are_round_values_within_the_limits(limits, expected):
    assert ticks(*limits, 6) == pytest.approx(expected)


def test_the_longest_bar_fills_the_width_and_the_others_their_share():
    rows = [[Piece(1, "blue", "x"), Piece(2, "green", "y")], [Piece(1.5, "blue", "x")]]
    boxes = [box for row in rows for box in ET.fromstring(bar_cell(row, 3)).iter("rect")]
    assert [(box.get("x"), box.get("width")) for box in boxes] == [
        ("0%", "33.33%"),
        ("33.33%", "66.67%"),
        ("0%", "50%"),
    ]


def test_a_bar_without_pieces_is_left_out_and_the_others_name_theirs():
    assert keyed_bar([Piece(0, "blue", "x")]) == ""
    assert '<span class="key blue">&lt;b&gt;</span>' in keyed_bar([Piece(1, "blue", "<b>"), Piece(0, "green", "y")])


def test_memory_without_a_curve_is_not_drawn():
    assert memory_curve(fill(DeviceMemory, {"device_type": "cuda", "curve": []}), "x") is None


def lanes(**parts: list[int]) -> str:
    return str(timeline_figure(fill(Timeline, {"span_ns": 4_000_000, "lanes": [{"name": "GPU", "parts": parts}]})))


def test_pieces_alike_are_one_box_and_parts_stand_on_each_other():
    picture = lanes(compute=[0, 60, 60, 100], idle_sync=[0, 40, 40, 0])
    assert 'viewBox="0 0 4 100"' in picture
    assert '<path fill="var(--blue)" d="M1 40h2v60h-2zM3 0h1v100h-1z"/>' in picture
    assert '<path fill="var(--vermillion)" d="M1 0h2v40h-2z"/>' in picture
    assert "M0 88h1v12h-1z" in lanes(sync=[1, 0])  # what runs shortly is still seen


def test_every_lane_says_in_words_what_is_on_it_and_the_axis_its_unit():
    picture = lanes(compute=[100], idle_sync=[0])
    assert 'aria-label="GPU: compute, idle after a sync"' in picture
    assert '<span class="key vermillion">idle after a sync</span>' in picture
    assert "Time in ms" in picture
    assert "<script" not in lanes(**{'"><script>alert(1)</script>': [9]})


@pytest.mark.parametrize("scale", [1, 8, 9, 1_000, 8_000, 76_800_000])
def test_an_axis_has_at_most_eight_round_steps(scale):
    places = ticks(0, scale, 8)
    assert places[0] == 0
    assert len(places) <= 9
