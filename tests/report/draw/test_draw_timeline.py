"""The picture of a step: bounded in shapes and bytes, true to the scale, safe with any name. Its section of a page."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from documents import fill
from steptrace.analysis.timeline import MOST_BOXES
from steptrace.documents.timeline import Timeline
from steptrace.report.draw.drawing import ticks
from steptrace.report.draw.timeline import KINDS, timeline_figure
from steptrace.report.page import definitions as defs

Json = dict[str, Any]


def entry(*boxes: tuple[int, int, str, str], span: int = 1_000_000, kind: str = "stream", **more: object) -> Timeline:
    """The entry `timeline` with one lane of these boxes: start, length, kind, name."""
    lane = {
        "kind": kind,
        "name": "GPU 0, stream 7",
        "start_ns": [box[0] for box in boxes],
        "dur_ns": [box[1] for box in boxes],
        "level": [0] * len(boxes),
        "events": [1] * len(boxes),
        "time_ns": [box[1] for box in boxes],
        "what": list(range(len(boxes))),
    }
    step = {"step": 3, "span_ns": span, "host_ns": span, "left_out": []}
    whole = {**step, "kinds": [b[2] for b in boxes], "names": [b[3] for b in boxes], "lanes": [lane], **more}
    return fill(Timeline, whole)


def widest(name: str, number: int) -> Timeline:
    """As many boxes as a picture takes, all wide enough to be pointed at, all with a long name."""
    boxes = [(row * 1_000, 900, "compute", f"{name}{row}") for row in range(number)]
    return entry(*boxes, span=number * 1_000)


@pytest.mark.parametrize("name", ["k" * 100, "<&>" * 30, "\N{GREEK SMALL LETTER MU}" * 90])
def test_a_picture_is_bounded_in_shapes_and_bytes(name: str) -> None:
    number = MOST_BOXES // 2  # of more in a row each is too narrow
    svg = timeline_figure(widest(name, number))
    assert svg is not None
    assert svg.count("<rect") == number
    assert len(svg.encode()) <= 400 * number


def test_nothing_to_show_is_no_picture() -> None:
    assert timeline_figure(None) is None
    assert timeline_figure(entry(lanes=[])) is None


def test_boxes_stand_at_their_share_of_the_scale_and_say_their_times() -> None:
    step = entry((0, 250_000, "compute", "gemm"), (500_000, 100_000, "memory", "Memcpy DtoH"))
    own = str(timeline_figure(step))
    assert '<rect x="0" y="0" width="2500" height="16"><title>gemm\n250 µs from 0 ns</title></rect>' in own
    assert '<rect x="5000" y="0" width="1000"' in own


def test_narrow_boxes_are_one_path_and_wide_ones_carry_their_name() -> None:
    svg = str(
        timeline_figure(entry((0, 500_000, "op", "aten::mm"), (600_000, 100, "op", "a"), (610_000, 100, "op", "b")))
    )
    assert svg.count("<path") == 1
    assert svg.count('<g class="op">') == 1
    assert '<text x="4" y="12">aten::mm</text>' in svg
    assert "<title>a\n" not in svg


def test_several_short_events_are_as_high_as_the_time_they_fill() -> None:
    step = entry((0, 400_000, "compute", "gemm"))
    step = replace(step, lanes=(replace(step.lanes[0], events=(20,), time_ns=(100_000,)),))
    svg = str(timeline_figure(step))
    assert 'y="12" width="4000" height="4"' in svg
    assert "20 events, longest gemm\n100 µs within 400 µs from 0 ns" in svg


def test_a_sync_goes_through_all_lanes_and_has_its_site_beside_it() -> None:
    step = entry((100_000, 5_000, "sync", "losses.py:12 aten::nonzero"), kind="syncs")
    svg = str(timeline_figure(step))
    assert '<rect class="wait" x="10%" width="0.5%"' in svg
    assert "losses.py:12 aten::nonzero</text>" in svg


def test_the_end_of_the_hosts_part_is_marked_where_the_gpu_goes_on() -> None:
    step = entry((0, 900_000, "compute", "gemm"), host_ns=600_000)
    assert "the host left the step, 600 µs" in str(timeline_figure(step))
    assert "the host left" not in str(timeline_figure(entry((0, 900_000, "compute", "gemm"))))


def test_names_are_escaped_and_the_picture_is_told_in_words() -> None:
    svg = str(timeline_figure(entry((0, 900_000, "compute", "<script>alert(1)</script>&"))))
    assert "<script" not in svg
    assert "&lt;script&gt;" in svg
    assert 'aria-label="Step 3, 1.00 ms. GPU 0, stream 7: 1 event, 900 µs in its first row."' in svg


def test_every_kind_of_box_has_a_name_in_the_legend_and_a_colour() -> None:
    css = (Path(defs.__file__).parent / "page.css").read_text(encoding="utf-8")
    for kind in KINDS:
        assert f".timeline-graph .{kind} {{ --box:" in css
        assert f'class="key {kind}"' in str(timeline_figure(entry((0, 900_000, kind, "x"))))


@pytest.mark.parametrize("scale", [1, 8, 9, 1_000, 8_000, 76_800_000])
def test_an_axis_has_at_most_eight_round_steps(scale: int) -> None:
    places = ticks(0, scale, 8)
    assert places[0] == 0
    assert len(places) <= 9
