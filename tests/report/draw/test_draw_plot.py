"""Matplotlib's figures as they stand in a page: whole, apart from each other, with no more letters than they need."""

import re
import xml.etree.ElementTree as ET

from steptrace.report.draw.plot import BAND, COLOURS, canvas, inline, style


def drawn(label: str) -> str:
    with style():
        figure = canvas(120)
        axes = figure.add_axes((0.1, 0.2, 0.8, 0.6))
        axes.plot([0, 1, 2, 3], [1.23456789, 2, 1, 3], marker="o", color=COLOURS["blue"])
        axes.plot([0, 1, 2, 3], [3, 1, 2, 1], marker="o", color=COLOURS["blue"])
        axes.axvspan(0.5, 1.5, color=BAND)
        axes.text(1, 2, f"a < b & 0.123456 > c{label}")
        return str(inline(figure, 'so and "so"'))


def test_every_reference_has_its_target_and_ids_differ_from_those_of_another_figure() -> None:
    text = drawn("one")
    root = ET.fromstring(text)
    names = [element.get("id") for element in root.iter() if element.get("id")]
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    assert used == set(names)
    assert len(names) == len(set(names))
    assert not used & set(re.findall(r'id="([^"]+)"', drawn("other")))


def test_styles_that_come_back_are_classes_that_outweigh_the_pages_own() -> None:
    text = drawn("one")
    styles = re.findall(r' style="([^"]+)"', text)
    assert len(styles) == len(set(styles))
    classes = set(re.findall(r'<(?!svg)[^>]* class="([^"]+)"', text))
    assert classes
    assert all(f".chart .{name}{{" in text for name in classes)
    assert f"stroke: {COLOURS['blue']}" not in text
    assert "stroke: var(--blue)" in text


def test_coordinates_are_short_and_words_are_left_alone() -> None:
    text = drawn("one")
    assert not re.search(r'="[^"]*\d\.\d{3}', text)
    assert "a &lt; b &amp; 0.123456 &gt; c" in text
    assert "rotate(" not in text
    assert text.startswith('<svg role="img" aria-label="so and &#34;so&#34;"')
    assert not re.search(r">\s+<", text)
