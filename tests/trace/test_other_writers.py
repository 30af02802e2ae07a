"""Traces that other tools have written, merged or copied: what a viewer overlooks is overlooked here as well."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from builders import TraceBuilder, training_step
from steptrace.errors import TraceError, TruncatedTraceError
from steptrace.trace.files import looks_like_trace
from steptrace.trace.link import link, read_trace
from steptrace.trace.model import Trace
from steptrace.trace.read import read_raw


def _events() -> list[dict[str, Any]]:
    builder = TraceBuilder()
    for index in range(3):
        training_step(builder, index, index * 1_100_000)
    events: list[dict[str, Any]] = json.loads(builder.text())["traceEvents"]
    return events


def _text(events: list[dict[str, Any]], **more: Any) -> str:
    return json.dumps({"schemaVersion": 1, **more, "traceEvents": events})


def _figures(trace: Trace) -> list[int]:
    return [len(trace.steps), len(trace.ops), len(trace.kernels), len(trace.syncs)]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace('"traceEvents": [', '"traceEvents": [,'),
        lambda text: text.replace('"traceEvents": [', '"traceEvents": [ , ,\n'),
        lambda text: text.removesuffix("]}") + ",]}",
        lambda text: text.removesuffix("]}") + " ,\n ] }",
        lambda text: text.replace("}, {", "},\n,, {", 7),
        lambda text: text.replace('"traceEvents": [', '"traceEvents": [,').removesuffix("]}") + ", ,]}",
        lambda text: text[text.index("[") :].removesuffix("}").removesuffix("]") + ",]",
    ],
)
@pytest.mark.parametrize("chunk", [200, 1 << 20])
def test_stray_commas_are_overlooked(tmp_path: Path, change: Any, chunk: int) -> None:
    good = tmp_path / "good.json"
    bad = tmp_path / "bad.json"
    good.write_text(_text(_events()))
    bad.write_text(change(good.read_text()))
    assert bad.read_text() != good.read_text()
    assert _figures(read_trace(bad)) == _figures(read_trace(good))
    read_raw(bad, chunk=chunk)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"name": None}, "unnamed"),
        ({"name": 17}, "17"),
        ({"name": True}, "True"),
        ({"name": ["a"]}, "['a']"),
        ({"args": [{"correlation": 3}]}, "odd"),
        ({"args": [[{"a": 1}], {}]}, "odd"),
    ],
)
def test_a_member_of_another_type_costs_no_more_than_itself(
    tmp_path: Path, changes: dict[str, Any], name: str, *, whole: bool
) -> None:
    path = tmp_path / "trace.json"
    odd = {"ph": "X", "cat": "cpu_op", "name": "odd", "pid": 1, "tid": 1, "ts": 10.0, "dur": 1.0} | changes
    path.write_text(_text([*_events(), odd] if whole else [odd, *_events()]))
    trace = read_trace(path)
    assert name in set(trace.ops["name"])
    assert [note.code for note in trace.meta.notes] == ["parts_left_out"]
    path.write_text(_text(_events()))
    steps, ops, kernels, syncs = _figures(read_trace(path))
    assert _figures(trace) == [steps, ops + 1, kernels, syncs]


@pytest.mark.parametrize("args", [[], None, "", "text", 3, 1.5, True, [1, "a"]])
@pytest.mark.parametrize("at", [0, 1])
def test_arguments_that_are_no_object_are_none(tmp_path: Path, args: Any, at: int) -> None:
    events = _events()
    path = tmp_path / "trace.json"
    path.write_text(_text(events))
    expected = _figures(read_trace(path))
    named = [event for event in events if event.get("cat") in ("user_annotation", "cpu_op")]
    named[at]["args"] = args
    path.write_text(_text(events))
    assert _figures(read_trace(path)) == expected


@pytest.mark.parametrize(
    "texts",
    [r'["C:\\Users\q", "", "x"]', '["say "hi" now", ""]', '["a\nb"]', '["", "}, {", "a "b", c"]', '["x"y"]'],
)
@pytest.mark.parametrize("at", [0, 2])
def test_a_damaged_list_of_texts_costs_the_list_alone(tmp_path: Path, texts: str, at: int) -> None:
    events = _events()
    path = tmp_path / "trace.json"
    path.write_text(_text(events))
    expected = _figures(read_trace(path))
    named = [event for event in events if event.get("cat") == "cpu_op"]
    named[at]["args"]["Concrete Inputs"] = "HERE"
    for more in ({}, {"Input Dims": [[8, 8], []]}):
        named[at]["args"] |= more
        path.write_text(_text(events).replace('"HERE"', texts))
        with pytest.raises(json.JSONDecodeError):
            json.loads(path.read_text())
        assert _figures(read_trace(path)) == expected


@pytest.mark.parametrize(
    ("job", "rank", "ranks"),
    [
        ({"rank": "3", "world_size": "8"}, 3, 8),
        ({"rank": 3, "world_size": 8}, 3, 8),
        ({"rank": "three", "world_size": "-1"}, None, None),
        ({"rank": True, "world_size": 1.5}, None, None),
    ],
)
def test_a_rank_may_be_written_as_text(tmp_path: Path, job: Any, rank: int | None, ranks: int | None) -> None:
    path = tmp_path / "trace.json"
    path.write_text(_text(_events(), distributedInfo=job))
    trace = read_trace(path)
    assert (trace.rank, trace.meta.world_size) == (rank, ranks)


@pytest.mark.parametrize("chunk", [7, 1 << 20])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_any_unicode_encoding_is_read_with_or_without_a_mark_of_its_byte_order(
    tmp_path: Path, encoding: str, *, marked: bool, packed: bool, chunk: int
) -> None:
    path = tmp_path / "trace.json"
    events = _events()
    events[0]["name"] = "größer 🚀"
    path.write_text(_text(events), encoding="utf-8")
    expected = _figures(read_trace(path))
    text = (marked * "\ufeff" + _text(events)).encode(encoding)
    path.write_bytes(gzip.compress(text) if packed else text)
    assert _figures(link(read_raw(path, chunk=chunk))) == expected
    assert looks_like_trace(path)


def _as_lines(events: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


@pytest.mark.parametrize("chunk", [7, 1 << 20])
@pytest.mark.parametrize(
    "written",
    [
        _as_lines,
        lambda events: _as_lines(events).rstrip("\n"),
        lambda events: _as_lines(events).replace("\n", "\r\n\r\n"),
        lambda events: _as_lines(events).replace("\n", ",\n"),
        lambda events: "// one event a line\n" + _as_lines(events),
    ],
)
def test_one_event_a_line_is_read(tmp_path: Path, written: Any, chunk: int) -> None:
    path = tmp_path / "trace.json"
    path.write_text(_text(_events()))
    expected = _figures(read_trace(path))
    path.write_text(written(_events()))
    assert _figures(link(read_raw(path, chunk=chunk))) == expected


def test_a_last_line_that_was_cut_off_makes_a_truncated_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(_as_lines(_events())[:-20])
    with pytest.raises(TruncatedTraceError):
        read_trace(path)


def test_lines_that_are_not_all_events_are_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"schemaVersion": 1}\n' + _as_lines(_events()))
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert caught.value.next_step


@pytest.mark.parametrize("chunk", [97, 1 << 20])
@pytest.mark.parametrize(
    ("begin", "put_in"),
    [
        ("// recorded on Monday\n", ""),
        ("/* recorded\n on Monday */ ", ""),
        ("", "// the next event\n"),
        ("", "/* the next event */"),
        ("// one\n// two\n", "// three\n/* four */"),
    ],
)
def test_comments_are_passed_over(tmp_path: Path, begin: str, put_in: str, chunk: int) -> None:
    path = tmp_path / "trace.json"
    events = _events()
    events[0]["name"] = "https://example.org/*"
    text = json.dumps({"schemaVersion": 1, "traceEvents": ["HERE"]})
    events *= 3  # more than the reader looks at first
    body = (",\n" + put_in).join(map(json.dumps, events))
    path.write_text(_text(events))
    expected = _figures(read_trace(path))
    path.write_text(begin + text.replace('["HERE"]', f"[{put_in}{body}{put_in}]") + put_in)
    assert _figures(link(read_raw(path, chunk=chunk))) == expected
    inside = json.dumps(events[3]).replace('"cat"', f'{put_in} "cat"')
    body = ",".join(inside if k == 3 else json.dumps(event) for k, event in enumerate(events))
    path.write_text(begin + text.replace('"HERE"', body).replace('{"schemaVersion"', f'{{{put_in} "schemaVersion"'))
    assert _figures(link(read_raw(path, chunk=chunk))) == expected


@pytest.mark.parametrize("chunk", [7, 1 << 20])
@pytest.mark.parametrize(
    "empty", ['{"traceEvents": [], ', '{"traceEvents": [ ], "a": 1, "traceEvents": [\n], ', '{"traceEvents": null, ']
)
def test_an_empty_list_of_events_before_the_real_one_is_passed_over(tmp_path: Path, empty: str, chunk: int) -> None:
    path = tmp_path / "trace.json"
    path.write_text(_text(_events()))
    expected = _figures(read_trace(path))
    path.write_text(empty + _text(_events()).removeprefix("{"))
    assert _figures(link(read_raw(path, chunk=chunk))) == expected
    path.write_text(_text(_events()).removesuffix("}") + ', "traceEvents": []}')
    assert _figures(link(read_raw(path, chunk=chunk))) == expected


def test_two_lists_with_events_are_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(_text(_events()).removesuffix("}") + ', "traceEvents": [{"ph": "M"}]}')
    with pytest.raises(TraceError, match="two lists") as caught:
        read_trace(path)
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (lambda events: _text([events]), "an array in an event's place"),
        (lambda events: _text([events[:3], events[3:]]), "an array in an event's place"),
        (lambda events: json.dumps([[e["ph"], e["name"], e["ts"]] for e in events]), "an array in an event's place"),
        (lambda events: json.dumps([{"traceEvents": events}] * 2), "an array of 2 objects, none of which is an event"),
        (lambda events: _text({str(k): event for k, event in enumerate(events)}), "are an object, not a list"),
        (lambda events: json.dumps(_text(events)), "encoded twice"),
        (lambda events: str({"traceEvents": events}), "dictionary of Python"),
        (lambda events: "404: Not Found", "it begins with '404: Not Found'"),  # noqa: ARG005 - as the others
    ],
)
def test_values_of_another_form_than_an_array_of_events_are_named(tmp_path: Path, text: Any, what: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text(_events()))
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert what in str(caught.value)
    assert caught.value.next_step or caught.value.expected


@pytest.mark.parametrize("bare", [False, True])
def test_traces_that_were_appended_to_each_other_are_an_error_with_a_next_step(tmp_path: Path, bare: bool) -> None:  # noqa: FBT001
    path = tmp_path / "trace.json"
    path.write_text(2 * (json.dumps(_events()) if bare else _text(_events())))
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert "split it" in (caught.value.next_step or "")


@pytest.mark.parametrize("others", [[None], [None, None, 5], ["x", True, -1.5e3, []], ['a "b", ]', {}]])
@pytest.mark.parametrize("at", [0, 4, 10**6])
@pytest.mark.parametrize("chunk", [200, 1 << 20])
def test_values_that_are_no_events_are_left_out(tmp_path: Path, others: list[Any], at: int, chunk: int) -> None:
    good = tmp_path / "good.json"
    bad = tmp_path / "bad.json"
    events = _events()
    good.write_text(_text(events))
    bad.write_text(_text(events[:at] + others + events[at:]))
    assert _figures(read_trace(bad)) == _figures(read_trace(good))
    (note,) = read_raw(bad, chunk=chunk).notes
    assert (note.code, note.figures["events"]) == ("parts_left_out", sum(other != {} for other in others))


@pytest.mark.parametrize("chunk", [200, 1 << 20])
def test_zero_bytes_behind_the_trace_are_overlooked(tmp_path: Path, chunk: int) -> None:
    good = tmp_path / "good.json"
    bad = tmp_path / "bad.json"
    good.write_text(_text(_events()))
    bad.write_bytes(good.read_bytes() + b"\n" + b"\0" * 5_000)
    assert _figures(read_trace(bad)) == _figures(read_trace(good))
    assert read_raw(bad, chunk=chunk).notes == []


@pytest.mark.parametrize("hole", [16, 5_000])
@pytest.mark.parametrize("whole", [True, False])
def test_a_hole_among_the_events_is_named(tmp_path: Path, hole: int, *, whole: bool) -> None:
    path = tmp_path / "trace.json"
    text = _text(_events()).encode()
    path.write_bytes(text[:2_000] + b"\0" * hole + (text[2_000 + hole :] if whole else b""))
    with pytest.raises(TraceError, match="zero bytes"):
        read_trace(path)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
def test_a_text_that_is_cut_within_a_character_is_cut_and_not_damaged(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "trace.json"
    text = _text(_events()).encode(encoding)
    for lost in (len(text) // 3 | 1, 41):
        path.write_bytes(text[:-lost])
        with pytest.raises(TruncatedTraceError):
            read_trace(path)


@pytest.mark.parametrize(
    ("log", "figures"),
    [
        ({"WARNING": ["Dropped 12 activity records", "Dropped 3 activity records"]}, {"dropped": 15, "stopped": False}),
        (
            {"WARNING": ["Exceeded max GPU buffer count (33 >= 33) - terminating tracing"]},
            {"dropped": 0, "stopped": True},
        ),
        (
            {"ERROR": ["State: CollectTrace stopped by GPU profiler. (Buffer size configured is 128MB)"]},
            {"dropped": 0, "stopped": True},
        ),
        ({"INFO": ["Record counts: Out-of-range = 2, GPU stopped early? = 0"], "WARNING": []}, None),
        ({"WARNING": "Dropped 7 activity records", "ERROR": None}, {"dropped": 7, "stopped": False}),
    ],
)
def test_records_that_the_profilers_log_says_are_lost_are_noted(
    tmp_path: Path, log: dict[str, Any], figures: dict[str, Any] | None
) -> None:
    """Kineto writes its log behind the events."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": _events(), **log}))
    found = [note.figures for note in read_trace(path).meta.notes if note.code == "profiler_lost_records"]
    assert found == ([] if figures is None else [figures])
