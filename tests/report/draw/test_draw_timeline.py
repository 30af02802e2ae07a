"""The picture of a step: lanes of boxes as high as the share of the time, named, safe with any name."""

import pytest

from documents import fill
from steptrace.documents.timeline import Timeline
from steptrace.report.draw.cells import timeline_figure
from steptrace.report.draw.drawing import ticks


def drawn(**parts: list[int]) -> str:
    return str(timeline_figure(fill(Timeline, {"span_ns": 4_000_000, "lanes": [{"name": "GPU", "parts": parts}]})))


def test_pieces_alike_are_one_box_and_parts_stand_on_each_other() -> None:
    picture = drawn(compute=[0, 60, 60, 100], idle_sync=[0, 40, 40, 0])
    assert 'viewBox="0 0 4 100"' in picture
    assert '<path fill="var(--blue)" d="M1 40h2v60h-2zM3 0h1v100h-1z"/>' in picture
    assert '<path fill="var(--vermillion)" d="M1 0h2v40h-2z"/>' in picture


def test_what_runs_shortly_is_still_seen() -> None:
    assert "M0 88h1v12h-1z" in drawn(sync=[1, 0])


def test_every_lane_says_in_words_what_is_on_it_and_the_axis_its_unit() -> None:
    picture = drawn(compute=[100], idle_sync=[0])
    assert 'aria-label="GPU: compute, idle after a sync"' in picture
    assert '<span class="key vermillion">idle after a sync</span>' in picture
    assert "Time in ms" in picture


def test_names_are_escaped() -> None:
    assert "<script" not in drawn(**{'"><script>alert(1)</script>': [9]})


@pytest.mark.parametrize("scale", [1, 8, 9, 1_000, 8_000, 76_800_000])
def test_an_axis_has_at_most_eight_round_steps(scale: int) -> None:
    places = ticks(0, scale, 8)
    assert places[0] == 0
    assert len(places) <= 9
