"""Charts drawn as SVG: what is written is well-formed, escaped, short, and in the colours of the page."""

import re
import xml.etree.ElementTree as ET

import pytest

from documents import fill
from steptrace.documents.memory import DeviceMemory
from steptrace.report.draw.bars import Bar, Piece, bars
from steptrace.report.draw.drawing import WIDTH, Drawing, legend_height, legend_lines, ticks
from steptrace.report.draw.memory import category_bars, memory_curve


def test_names_and_tooltips_are_escaped_and_coordinates_short() -> None:
    drawing = Drawing(50)
    drawing.rect((1 / 3, 2), (10, 5), "blue", tip="<one> & two")
    drawing.text((0, 10), "a < b & 0.123456 > c", "name")
    text = drawing.svg('so and "so"')
    root = ET.fromstring(text)
    assert root.attrib["aria-label"] == 'so and "so"'
    assert root[0].attrib["fill"] == "var(--blue)"
    assert root[0][0].text == "<one> & two"
    assert root[1].text == "a < b & 0.123456 > c"
    assert not re.search(r'="[^"]*\d\.\d{3}', text)


def test_a_legend_wraps_at_the_width() -> None:
    lines = legend_lines([("a" * 30, "blue", 1.0), ("b" * 30, "blue", 1.0), ("c", "blue", 1.0)])
    assert [[word[0] for _, word, *_ in line] for line in lines] == [["a"], ["b", "c"]]
    assert legend_height(lines) > legend_height(legend_lines([])) > 0


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((0, 10), [0, 2, 4, 6, 8, 10]),
        ((0, 0.7), [0, 0.2, 0.4, 0.6]),
        ((931, 1013), [940, 960, 980, 1000]),
        ((0, 3e9), [0, 5e8, 1e9, 1.5e9, 2e9, 2.5e9, 3e9]),
    ],
)
def test_ticks_are_round_values_within_the_limits(limits: tuple[float, float], expected: list[float]) -> None:
    assert ticks(*limits, 6) == pytest.approx(expected)


def test_the_longest_bar_fills_the_width_and_the_others_their_share() -> None:
    rows = [
        Bar("a", "3 ms", [Piece(1, "blue", "x"), Piece(2, "green", "y")]),
        Bar("b", "1.5 ms", [Piece(1.5, "blue", "x")]),
    ]
    root = ET.fromstring(bars(rows, [], "two bars", "ms"))
    boxes = [float(box.attrib[key]) for box in root.iter("rect") for key in ("x", "width")]
    assert boxes == pytest.approx([0, WIDTH / 3, WIDTH / 3, 2 * WIDTH / 3, 0, WIDTH / 2], abs=0.051)


def test_memory_without_a_curve_or_bytes_is_not_drawn() -> None:
    assert memory_curve(fill(DeviceMemory, {"device_type": "cuda", "curve": []}), "x") is None
    assert category_bars([("x", {})], "") is None
