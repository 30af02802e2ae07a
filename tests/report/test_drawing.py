"""Pictures as SVG: what is written is well-formed, escaped, short, and in the colours of the page."""

import re
import xml.etree.ElementTree as ET

import pytest

from documents import fill
from steptrace.documents.memory import DeviceMemory
from steptrace.report.charts.cells import Piece, bar_cell
from steptrace.report.charts.scale import ticks
from steptrace.report.charts.svg import Drawing
from steptrace.report.page.section import keyed_bar
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


@pytest.mark.parametrize("scale", [1, 8, 9, 1_000, 8_000, 76_800_000])
def test_an_axis_has_at_most_eight_round_steps(scale):
    places = ticks(0, scale, 8)
    assert places[0] == 0
    assert len(places) <= 9
