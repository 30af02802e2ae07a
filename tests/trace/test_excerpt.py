"""Excerpts of traces: what is in them, that a whole step keeps its figures, their size, their form."""

import gzip
import json
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from builders import AUTOGRAD, MAIN, PINNED_D2H, TraceBuilder, training_step
from recorded import recorded
from steptrace.analysis import summarize
from steptrace.analysis.marks import critical_path_marks
from steptrace.analysis.overview import kernels_per_step, operators_per_step
from steptrace.analysis.steps import step_times
from steptrace.analysis.syncs import sync_costs
from steptrace.errors import ConfigError, TraceError
from steptrace.trace.excerpt import RankFile, write_excerpt, write_ranks_excerpt
from steptrace.trace.files import find_traces
from steptrace.trace.link import read_trace
from steptrace.trace.model import Trace
from steptrace.trace.step_excerpt import step_excerpt

NAMES = ("cpu_only", "event_sync", "h100_vit", "mi250", "two_ranks_1", pytest.param("nccl", marks=pytest.mark.slow))


def _document(path: Path) -> Any:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data, parse_float=Decimal)


def _events(document: Any) -> list[dict[str, Any]]:
    return list(document if isinstance(document, list) else document["traceEvents"])


def _figures(trace: Trace, step: int) -> dict[str, Any]:
    """Figures of one step that do not depend on where in the trace it lies, or on the steps before it."""
    row = int((trace.steps["index"] == step).to_numpy().argmax())
    start = int(trace.steps["ts"].iloc[row])
    costs = sync_costs(trace)
    costs = costs[(costs["counted"] & (costs["step"] == row)).fillna(False).to_numpy(dtype=bool)]
    columns = ["kind", "dur", "blocked_ns", "exposed_idle_ns", "file", "line", "function", "op", "label", "phase"]
    memory = trace.memory[(trace.memory["ts"] >= start) & (trace.memory["ts"] < start + trace.steps["host_dur"][row])]
    return {
        "times": step_times(trace).drop(columns=["start_ns", "length_ns"]).iloc[row].to_dict(),
        "counts": [sum(count(trace)[row : row + 1]) for count in (kernels_per_step, operators_per_step)],
        "syncs": costs.assign(ts=costs["ts"] - start)[["ts", *columns]].astype(object).to_dict("records"),
        "memory": memory["bytes"].tolist(),
    }


def _check_structure(excerpt: Path, source: Path) -> list[dict[str, Any]]:
    """All but cut spans stand in the trace as they are, and so does the metadata; returns the events."""
    document = _document(excerpt)
    original = _document(source)
    assert document.pop("steptraceExcerpt")["of"] == source.name
    events = document.pop("traceEvents")
    everything = original.pop("traceEvents")
    assert document == original
    whole = {json.dumps(event, default=str) for event in everything}
    cut = [event for event in events if json.dumps(event, default=str) not in whole]
    low, high = (edge(_ends(cut)) for edge in (min, max)) if cut else (0, 0)
    of_whole = {_rest(event) for event in everything}
    for event in cut:
        assert event["ts"] == low or event["ts"] + event["dur"] == high
        assert _rest(event) in of_whole
    return list(events)


def _ends(spans: list[dict[str, Any]]) -> list[Decimal]:
    return [time for span in spans for time in (span["ts"], span["ts"] + span["dur"])]


def _rest(event: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in event.items() if key not in ("ts", "dur")}, default=str)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_a_real_trace_keeps_its_figures(tmp_path: Path, name: str) -> None:
    source = recorded(name)
    out = tmp_path / "excerpt.json.gz"
    full = read_trace(source)
    for step in [None, *full.steps["index"].tolist()][:2]:
        made = write_excerpt(source, out, step)
        assert (made.path, made.size) == (out, out.stat().st_size)
        assert len(_check_structure(out, source)) == made.events
        part = read_trace(out)
        assert (part.meta.world_size, part.meta.devices) == (full.meta.world_size, full.meta.devices)
        assert part.steps["index"].tolist() == [made.step]
        assert _figures(part, made.step) == _figures(full, made.step)


def _made(steps: int) -> TraceBuilder:
    builder = TraceBuilder(baseTimeNanoseconds=1_700_000_000_000_000_000, deviceProperties=[{"id": 0, "name": "GPU"}])
    builder.metadata["note"] = 'a "traceEvents": [ in a string'
    builder.frame("main.py(1): <module>", 0, steps * 1_100_000 + 5_000)
    for index in range(steps):
        training_step(builder, index, index * 1_100_000 + 1_000)
    return builder


def test_an_excerpt_reaches_from_the_launch_of_its_first_work_to_the_work_after_it(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.frame("main.py(1): <module>", 0, 1_000_000)
    builder.kernel(500, 2_000, 1_000, name="over")
    builder.kernel(3_000, 5_000, 1_000, name="last")
    builder.step(3, 4_000, 90_000)
    copy = builder.call("cudaMemcpyAsync", 10_000, 1_000)
    builder.gpu(PINNED_D2H, 140_000, 5_000, copy)
    builder.call("cudaEventRecord", 12_000, 1_000)  # without it the copy would be one with the step's first wait
    builder.step(4, 100_000, 100_000)
    builder.op("aten::mm", 100_000, 5_000)
    builder.op("on another thread", 150_000, 1_000, tid=AUTOGRAD)
    builder.call("cudaStreamSynchronize", 110_000, 40_000)
    last = builder.call("cudaMemcpyAsync", 195_000, 1_000)
    builder.gpu(PINNED_D2H, 197_000, 1_000, last)
    builder.call("cudaStreamSynchronize", 201_000, 40_000)
    builder.step(5, 290_000, 50_000)
    builder.kernel(300_000, 310_000, 1_000, name="next")
    builder.kernel(312_000, 320_000, 1_000, name="one more")
    builder.events.append({"ph": "i", "s": "t", "name": "mark", "pid": 1, "tid": MAIN, "ts": 160})
    builder.events.append({"ph": "C", "name": "queue", "pid": 0, "ts": 999, "args": {"value": 1}})
    builder.events.append({"ph": "M", "name": "process_name", "pid": 9, "tid": 0, "ts": 0, "args": {"name": "p"}})
    source = builder.write(tmp_path / "trace.json.gz")
    out = tmp_path / "out.json.gz"
    assert write_excerpt(source, out, 4).step == 4
    events = _check_structure(out, source)
    names = {event["name"] for event in events}
    assert {"last", "next", "mark", "process_name", "ProfilerStep#4", "cudaEventRecord", "on another thread"} <= names
    assert names.isdisjoint({"over", "one more", "queue", "ProfilerStep#3", "ProfilerStep#5"})
    (frame,) = [event for event in events if event.get("cat") == "python_function"]
    # from the last work before to the next
    assert (frame["ts"], frame["dur"]) == (Decimal("4.999"), Decimal("306.001"))
    full = read_trace(source)
    part = read_trace(out)
    expected = _figures(full, 4)
    assert [sync["kind"] for sync in expected["syncs"]] == ["cudaStreamSynchronize", "d2h_copy"]
    # The steps of the excerpt end at 200, and idle time is counted until then; the next work starts at 310.
    assert expected["syncs"][1]["exposed_idle_ns"] == 310_000 - 195_000 - 1_000
    expected["syncs"][1]["exposed_idle_ns"] = 200_000 - 195_000 - 1_000
    assert _figures(part, 4) == expected


def test_times_keep_every_digit(tmp_path: Path) -> None:
    """Absolute times of 2023 in microseconds with three decimals: more digits than a float has."""
    base = 1_695_835_572_943_623
    steps = [f'"ts": {base + 1000 * n}.517, "dur": 900.003' for n in range(3)]
    text = ",\n".join(
        f'{{ "ph": "X",  "cat": "{cat}", "name": "{name}", "pid": 1, "tid": 1, {time}, "args": {{"x": 1e-7}} }}'
        for cat, name, time in [
            *(("user_annotation", f"ProfilerStep#{n}", step) for n, step in enumerate(steps)),
            ("cpu_op", "aten::mm", f'"ts": {base + 1100}.123, "dur": 5.001'),
            ("user_annotation", "everything", f'"ts": {base - 5}.001, "dur": 5000.999'),
        ]
    )
    source = tmp_path / "trace.json"
    out = tmp_path / "e.json.gz"
    source.write_text('{"schemaVersion": 1, "traceEvents": [' + text + '], "traceName": "a\\u00e9"}')
    write_excerpt(source, out, 1)
    written = gzip.decompress(out.read_bytes()).decode()
    lines = text.split(",\n")
    assert lines[1] in written
    assert lines[3] in written
    assert lines[0] not in written
    assert f'"ts": {base + 1000}.516, "dur": 900.004, "args": {{"x": 1e-7}}}}' in written
    assert written.rstrip().endswith(', "traceName": "a\\u00e9"}')


@pytest.mark.parametrize("form", ["bare array", "indented", "nan and broken text"])
def test_other_forms_of_files(tmp_path: Path, form: str) -> None:
    builder = _made(steps=3)
    source = tmp_path / "trace.json"
    if form == "bare array":
        source.write_text(json.dumps(builder.events))
    elif form == "indented":
        source.write_bytes(builder.text(indent=2))
    else:
        builder.metadata["limit"] = "NAN"
        builder.events[8]["args"]["memory"] = "NAN"
        source.write_bytes(builder.text().replace(b'"NAN"', b"nan").replace(b"aten::mm", b"aten::mm\xff"))
    made = write_excerpt(source, tmp_path / "e.json.gz")
    assert made.step == 1
    write_excerpt(source, tmp_path / "again.json.gz")
    assert (tmp_path / "again.json.gz").read_bytes() == made.path.read_bytes()
    part = read_trace(tmp_path / "e.json.gz")
    assert _figures(part, 1) == _figures(read_trace(source), 1)


def test_an_excerpt_beside_its_trace_is_no_trace_of_the_folder(tmp_path: Path) -> None:
    ranks = [tmp_path / f"trace{rank}.json" for rank in range(2)]
    ranks[0].write_bytes(_made(steps=3).text())
    ranks[1].write_text(json.dumps(_made(steps=3).events))  # a bare array
    for rank in ranks:
        write_excerpt(rank, tmp_path / f"step_of_{rank.name}.gz")
    write_ranks_excerpt([RankFile(path, rank, 0) for rank, path in enumerate(ranks)], tmp_path / "all.json.gz")
    step = step_excerpt(read_trace(ranks[0]))
    assert step is not None
    (tmp_path / "step.json.gz").write_bytes(step.data)
    assert find_traces([tmp_path]) == ranks
    assert find_traces([tmp_path / "all.json.gz"]) == [tmp_path / "all.json.gz"]
    for rank in ranks:
        rank.unlink()
    assert {path.name for path in find_traces([tmp_path])} == {
        "all.json.gz",
        "step.json.gz",
        "step_of_trace0.json.gz",
        "step_of_trace1.json.gz",
    }


def test_an_empty_file_does_not_stand_for_the_excerpts_beside_it(tmp_path: Path) -> None:
    write_excerpt(_made(steps=3).write(tmp_path / "trace.json"), tmp_path / "step.json.gz")
    (tmp_path / "trace.json").write_text("")
    assert {path.name for path in find_traces([tmp_path])} == {"step.json.gz", "trace.json"}


@pytest.mark.parametrize("most_bytes", [40_000, 600])
def test_a_trace_says_that_it_is_an_excerpt_and_how_many_events_it_leaves_out(tmp_path: Path, most_bytes: int) -> None:
    excerpt = step_excerpt(_made(steps=3).trace(), most_bytes=most_bytes)
    assert excerpt is not None
    (tmp_path / "step.json.gz").write_bytes(excerpt.data)
    (note,) = (note for note in read_trace(tmp_path / "step.json.gz").meta.notes if note.code == "excerpt")
    assert note.figures["missing"] == excerpt.of - excerpt.events
    assert (note.figures["missing"] > 0) is (most_bytes == 600)


def test_a_folder_of_excerpts_above_a_trace_is_refused_with_the_folder_to_name(tmp_path: Path) -> None:
    """`steptrace run` leaves an excerpt beside its page, and the trace in a sub-folder."""
    run = tmp_path / "run0"
    run.mkdir()
    trace = run / "trace.json"
    trace.write_bytes(_made(steps=3).text())
    write_excerpt(trace, tmp_path / "step.json.gz")
    with pytest.raises(TraceError) as caught:
        find_traces([tmp_path])
    assert str(run) in str(caught.value)
    write_excerpt(trace, run / "step.json.gz")
    trace.unlink()
    (run / ".steptrace.json").write_text("{}")  # the list of what a command wrote, as in each folder of results
    assert find_traces([tmp_path]) == [tmp_path / "step.json.gz"]


def test_work_whose_time_was_lost_stays_away(tmp_path: Path) -> None:
    builder = TraceBuilder()
    far = 2 * 10**15
    for index in range(2):
        builder.step(index, far + index * 1_000_000, 900_000)
        builder.kernel(far + index * 1_000_000 + 5_000, far + index * 1_000_000 + 8_000, 1_000)
    builder.frame("main.py(1): <module>", far - 1_000_000, 9_000_000)
    builder.gpu("lost", 0, 0, None)
    write_excerpt(builder.write(tmp_path / "t.json"), tmp_path / "e.json.gz", 0)
    assert min(e["ts"] for e in _events(_document(tmp_path / "e.json.gz"))) > 999_000_000


def test_the_median_step_and_those_without_gpu_work(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for index, (start, length, works) in enumerate(
        [(0, 90, True), (100, 60, True), (200, 70, True), (300, 5, False), (400, 6, False)]
    ):
        builder.step(index, start * 1000, length * 1000)
        builder.op("aten::mm", start * 1000 + 10, 1_000)
        if works:
            builder.kernel(start * 1000 + 1_000, start * 1000 + 5_000, 2_000)
    assert write_excerpt(builder.write(tmp_path / "t.json"), tmp_path / "e.json.gz").step == 2


def test_errors(tmp_path: Path) -> None:
    source = _made(steps=2).write(tmp_path / "trace.json.gz")
    out = tmp_path / "e.json.gz"
    with pytest.raises(TraceError, match="no step 7"):
        write_excerpt(source, out, 7)
    with pytest.raises(ConfigError, match="not the name"):
        write_excerpt(source, tmp_path / "e.txt")
    with pytest.raises(ConfigError, match="would replace its trace"):
        write_excerpt(source, source)
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 1_000)
    with pytest.raises(TraceError, match="this trace has none"):
        write_excerpt(builder.write(tmp_path / "no_steps.json"), out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["no_steps.json", "trace.json.gz"]


def test_the_critical_path_is_marked_without_a_gap_and_is_passed_over_when_read(tmp_path: Path) -> None:
    source = recorded("h100_vit")
    out = tmp_path / "excerpt.json.gz"
    made = write_excerpt(source, out, marks=critical_path_marks)
    marks = [event for event in _events(_document(out)) if event.get("cat") == "steptrace_mark"]
    full = read_trace(source)
    row = int((full.steps["index"] == made.step).to_numpy().argmax())
    for before, after in pairwise(marks):
        assert before["ts"] + before["dur"] == after["ts"]
    length = (marks[-1]["ts"] + marks[-1]["dur"] - marks[0]["ts"]) * 1000
    assert int(length) == int(full.steps["dur"].iloc[row])
    part = read_trace(out)
    assert _figures(part, made.step) == _figures(full, made.step)
    assert [note.code for note in part.meta.notes] == ["excerpt", *(note.code for note in full.meta.notes)]


def _two_ranks() -> list[RankFile]:
    paths = [recorded(f"two_ranks_{rank}") for rank in range(2)]
    ranks = summarize(paths)[0].ranks
    assert ranks is not None
    return [RankFile(path, wait.rank, wait.clock_offset_ns or 0) for path, wait in zip(paths, ranks.waits, strict=True)]


def test_a_step_of_all_ranks_stands_on_one_clock_in_processes_of_each_rank(tmp_path: Path) -> None:
    ranks = _two_ranks()
    out = tmp_path / "ranks.json.gz"
    assert ranks[1].clock_offset_ns != 0
    made = write_ranks_excerpt(ranks, out, marks=critical_path_marks)
    document = _document(out)
    events = _events(document)
    assert (len(events), document["steptraceRanks"]) == (made.events, 2)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {event["pid"] for event in events if event["ph"] == "X"} <= set(names)
    for rank in ranks:
        alone = write_excerpt(rank.path, tmp_path / "alone.json.gz", made.step)
        kernels = [e for e in _events(_document(alone.path)) if e.get("cat") == "kernel"]
        mine = [e for e in events if e.get("cat") == "kernel" and names[e["pid"]].startswith(f"rank {rank.rank}: ")]
        # Both files count from the same epoch.
        shifts = {after["ts"] - before["ts"] for before, after in zip(kernels, mine, strict=True)}
        assert shifts == {Decimal(rank.clock_offset_ns) / 1000}


def test_the_file_of_all_ranks_is_refused_by_an_analysis(tmp_path: Path) -> None:
    out = tmp_path / "ranks.json.gz"
    write_ranks_excerpt(_two_ranks(), out)
    with pytest.raises(TraceError, match="several ranks"):
        read_trace(out)
