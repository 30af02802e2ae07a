"""The picture of a step: bounded in shapes and bytes, true to the scale, safe with any name. Its section of a page."""

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders import TraceBuilder, training_step
from documents import fill, plain
from steptrace.analysis.timeline.measure import shown_timeline
from steptrace.documents.base import write
from steptrace.documents.summary import Summary
from steptrace.documents.timeline import Timeline
from steptrace.report.draw.drawing import ticks
from steptrace.report.draw.timeline import KINDS, MAX_BYTES, timeline_figure
from steptrace.report.page import definitions as defs
from steptrace.report.study import trace_view
from steptrace.report.study.model import load_study

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
    step = {"step": 3, "span_ns": span, "host_ns": span, "events": len(boxes), "left_out": []}
    whole = {**step, "kinds": [b[2] for b in boxes], "names": [b[3] for b in boxes], "lanes": [lane], **more}
    return fill(Timeline, whole)


def widest(name: str, number: int) -> Timeline:
    """As many boxes as a picture takes, all wide enough to be pointed at, all with a long name."""
    boxes = [(row * 1_000, 900, "compute", f"{name}{row}") for row in range(number)]
    return entry(*boxes, span=number * 1_000)


@pytest.mark.parametrize("name", ["k" * 100, "<&>" * 30, "\N{GREEK SMALL LETTER MU}" * 90])
def test_a_picture_is_bounded_in_shapes_and_bytes(name: str) -> None:
    found = timeline_figure(widest(name, 1000))
    assert found is not None
    assert len(found.encode()) <= MAX_BYTES
    assert found.count("<rect") + found.count("<path") <= 1_500


def test_nothing_to_show_is_no_picture() -> None:
    assert timeline_figure(None) is None
    assert timeline_figure(entry(lanes=[])) is None


def test_boxes_stand_at_their_share_of_the_scale_and_say_their_times() -> None:
    step = entry((0, 250_000, "compute", "gemm"), (500_000, 100_000, "memory", "Memcpy DtoH"))
    own = str(timeline_figure(step))
    assert '<rect x="0" y="0" width="2500" height="16"><title>gemm\n250 µs from 0 ns</title></rect>' in own
    assert '<rect x="5000" y="0" width="1000"' in own
    assert "after" not in own
    half = str(timeline_figure(step, 2_000_000))
    assert '<rect x="0" y="0" width="1250"' in half
    assert '<rect class="after" x="50%" width="50%"' in half
    assert timeline_figure(step, 10) == timeline_figure(step)  # never less than the step itself


def test_narrow_boxes_are_one_path_and_wide_ones_carry_their_name() -> None:
    found = str(
        timeline_figure(entry((0, 500_000, "op", "aten::mm"), (600_000, 100, "op", "a"), (610_000, 100, "op", "b")))
    )
    assert found.count("<path") == 1
    assert found.count('<g class="op">') == 1
    assert '<text x="4" y="12">aten::mm</text>' in found
    assert "<title>a\n" not in found


def test_several_short_events_are_as_high_as_the_time_they_fill() -> None:
    step = entry((0, 400_000, "compute", "gemm"))
    step = replace(step, lanes=(replace(step.lanes[0], events=(20,), time_ns=(100_000,)),))
    found = str(timeline_figure(step))
    assert 'y="12" width="4000" height="4"' in found
    assert "20 events, longest gemm\n100 µs within 400 µs from 0 ns" in found


def test_a_sync_goes_through_all_lanes_and_has_its_site_beside_it() -> None:
    step = entry((100_000, 5_000, "sync", "losses.py:12 aten::nonzero"), kind="syncs")
    found = str(timeline_figure(step))
    assert '<rect class="wait" x="10%" width="0.5%"' in found
    assert "losses.py:12 aten::nonzero</text>" in found


def test_the_end_of_the_hosts_part_is_marked_where_the_gpu_goes_on() -> None:
    step = entry((0, 900_000, "compute", "gemm"), host_ns=600_000)
    assert "the host left the step, 600 µs" in str(timeline_figure(step))
    assert "the host left" not in str(timeline_figure(entry((0, 900_000, "compute", "gemm"))))


def test_names_are_escaped_and_the_picture_is_told_in_words() -> None:
    found = str(timeline_figure(entry((0, 900_000, "compute", "<script>alert(1)</script>&"))))
    assert "<script" not in found
    assert "&lt;script&gt;" in found
    assert 'aria-label="Step 3, 1.00 ms. GPU 0, stream 7: 1 event, 900 µs in its first row."' in found


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


def summary_of(*, gpu: bool, stretch: int = 1) -> Json:
    builder = TraceBuilder()
    if gpu:
        training_step(builder)
    else:
        builder.step(0, 0, 1_000_000 * stretch)
        builder.op("aten::mm", 0, 900_000 * stretch)
    trace = builder.trace()
    device = trace.devices[0] if gpu else None
    return {"traces": [{"timeline": shown_timeline(trace, device)}]}


def give(study: Path, variant: str, content: Json, *, excerpt: bool = True) -> None:
    folder = study.parent / variant / "run0"
    if excerpt:
        (folder / "excerpt.json.gz").write_bytes(b"x" * 2_048)
        told = {"file": "excerpt.json.gz", "bytes": 2_048, "step": 0, "left_out": ["python_function"]}
        content = {**content, "trace_excerpt": told}
    write(folder / "summary.json", fill(Summary, content))


def test_a_study_without_traces_has_no_such_section(study_builder: Any) -> None:
    study_builder.add("boolean_mask", [12.0])
    assert trace_view(load_study(path := study_builder.write()), path) is None


def test_all_pictures_of_a_study_have_one_scale_and_name_their_excerpt(study_builder: Any) -> None:
    for name in ("where", "boolean_mask", "sort"):
        study_builder.add(name, [12.0])
    path = study_builder.write()
    give(path, "where", summary_of(gpu=False))
    give(path, "boolean_mask", summary_of(gpu=False, stretch=2))
    give(path, "sort", summary_of(gpu=True), excerpt=False)
    found = str(trace_view(load_study(path), path))
    assert re.findall(r'<span class="variant">(\w+)', found) == ["boolean_mask", "where", "sort"]  # the baseline first
    assert found.count('<details class="block" open>') == 3
    assert found.count('<rect class="after" x="50%" width="50%"') == 2
    assert 'href="../results/masked_loss/where/run0/excerpt.json.gz"' in found
    assert "2.00 KiB, without python_function." in found
    assert "sort/run0" not in found
    for definition in defs.definitions(["Lane.kind", "Idle.by_cause", "Lane.events"]):
        assert definition.meaning[:40] in found


def test_without_a_gpu_nothing_is_said_of_syncs_and_gaps(study_builder: Any) -> None:
    study_builder.add("boolean_mask", [12.0])
    path = study_builder.write()
    give(path, "boolean_mask", summary_of(gpu=False))
    found = str(trace_view(load_study(path), path))
    assert "host threads alone" in found
    assert defs.definitions(["Lane.kind"])[0].meaning[:40] not in found


def test_many_variants_are_folded_and_stay_below_one_and_a_half_megabytes(study_builder: Any) -> None:
    names = [f"variant_{number}" for number in range(60)]
    for name in names:
        study_builder.add(name, [12.0])
    path = study_builder.write()
    content = {"traces": [{"timeline": plain(widest("a_long_name_of_a_kernel_that_goes_on_and_on", 1000))}]}
    for name in names:
        give(path, name, content)
    found = str(trace_view(load_study(path), path))
    assert found.count('<details class="block" open>') == 1
    assert found.count('<svg class="timeline"') == 6
    assert "54 more variants not drawn here, to keep the page small: variant_" in re.sub(r"<[^>]+>", "", found)
    assert len(found.encode()) < 1_500_000
