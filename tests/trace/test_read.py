"""Files to columns: every way a trace can be written, and every way it can be broken."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from builders import TraceBuilder, training_step
from steptrace.documents.note import note
from steptrace.errors import TraceError, TruncatedTraceError
from steptrace.trace import read
from steptrace.trace.files import find_traces
from steptrace.trace.link import read_trace
from steptrace.trace.read import read_each, read_raw


def _small() -> TraceBuilder:
    builder = TraceBuilder(distributedInfo={"rank": 3, "world_size": 8, "backend": "nccl"})
    for step in range(3):
        training_step(builder, step, step * 1_100_000)
    return builder


def _rows(path: Path, chunk: int = 1 << 22) -> dict[str, int]:
    return {kind: len(columns["ts"]) for kind, columns in read_raw(path, chunk=chunk).columns.items()}


@pytest.mark.parametrize("chunk", [64, 777, 5_000, 1 << 22])
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("first_key", ["ph", "name"])
def test_chunks_cut_anywhere_read_the_same(tmp_path: Path, chunk: int, indent: int | None, first_key: str) -> None:
    builder = _small()
    builder.events[3]["args"]["Call stack"] = 'a string with "}, {\\"ph\\": 1" and ] } in it'
    builder.events = [{first_key: event[first_key], **event} for event in builder.events]
    path = tmp_path / "trace.json"
    path.write_bytes(builder.text(indent=indent))
    # 3 steps: 4 kernels and a copy; 4 launches, a copy and a wait; 5 operators; 3 frames; 3 labels each
    assert _rows(path, chunk) == {"op": 15, "call": 18, "gpu": 15, "frame": 9, "label": 9, "memory": 0}
    assert read_raw(path, chunk=chunk).metadata["distributedInfo"]["rank"] == 3


def test_metadata_before_and_after_the_events(tmp_path: Path) -> None:
    events = json.dumps(_small().events)
    path = tmp_path / "x.json"
    path.write_text(
        f'{{"a": ["traceEvents", {{"b": 1}}], "traceEvents": {events}, "tail": [{{"name": "ph"}}], "z": "}}]"}}'
    )
    raw = read_raw(path, chunk=500)
    assert raw.metadata == {"a": ["traceEvents", {"b": 1}], "tail": [{"name": "ph"}], "z": "}]"}


def test_bare_array_gzip_under_any_name_several_members_and_byte_order_mark(tmp_path: Path) -> None:
    events = json.dumps(_small().events).encode()
    whole = _small().text()
    for name, text in {
        "array.json": events,
        "gz_named.json": gzip.compress(events),
        "members.json.gz": gzip.compress(whole[:1000]) + gzip.compress(whole[1000:]),
        "bom.json": b"\xef\xbb\xbf" + events,
        "bom_before_an_object.json": b"\xef\xbb\xbf" + whole,
    }.items():
        path = tmp_path / name
        path.write_bytes(text)
        assert _rows(path, 300)["gpu"] == 15


@pytest.mark.parametrize(
    ("ts", "dur", "ts_ns", "dur_ns"),
    [
        ("4344667991214.797", "2218.669", 4344667991214797, 2218669),  # since Kineto's own base
        ("8796093022207.999", "0.001", 8796093022207999, 1),  # the last float64 that tells ns apart
        ("1712345678901234.567", "99.999", 1712345678901234567, 99999),  # since 1970: no float64 holds it
        ("1695835542481129", "12", 1695835542481129000, 12000),
        ("4344667991214.7975", "0.0035", 4344667991214798, 4),  # to the nearest ns
        ("1.5e9", "2e-3", 1500000000000, 2),
        ('"1695835542481129"', '"1.25"', 1695835542481129000, 1250),
    ],
)
def test_times_keep_every_digit(tmp_path: Path, ts: str, dur: str, ts_ns: int, dur_ns: int) -> None:
    path = tmp_path / "trace.json"
    event = f'{{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": {ts}, "dur": {dur}}}'
    path.write_text(f'{{"traceEvents": [{event}]}}')
    raw = read_raw(path)
    assert raw.base_ns == ts_ns
    assert raw.columns["op"]["ts"].tolist() == [0]
    assert raw.columns["op"]["dur"].tolist() == [dur_ns]


def test_what_kineto_and_tools_write_besides_json(tmp_path: Path) -> None:
    builder = _small()
    text = builder.text().replace(
        b'"stream": 7', b'"stream": "7", "blocks per SM": inf, "est. achieved occupancy %": -nan'
    )
    text = text.replace(b"aten::mm", b"broken \xff utf-8: nan, inf")
    path = tmp_path / "trace.json"
    path.write_bytes(text)
    trace = read_trace(path)
    assert set(trace.kernels["stream"]) == {7}
    assert trace.kernels["blocks_per_sm"].isna().all()
    assert "broken \ufffd utf-8: nan, inf" in set(trace.ops["name"])


_BROKEN = {
    "missing": (None, "no such file"),
    "empty": (b"", "the file is empty"),
    "blank": (b" \n\t ", "the file is empty"),
    "text": (b"hello", "it begins with .hello."),
    "not JSON": (b'{"traceEvents": [{"ph": "X", "cat": }]}', 'an event that cannot be read: {"ph": "X", "cat": }]}'),
    "not JSON at all": (b"{hello}", "invalid JSON"),
    "other JSON": (b'{"metrics": [1, 2, 3]}', "no list of traceEvents"),
    "numbers": (b"[1, 2, 3]", "an array of 3 values, none of which is an event"),
    "lines": (b"[1,\n\t2]\n", "an array of 2 values, none of which is an event"),
    "events no array": (b'{"traceEvents": {"a": 1}}', "traceEvents are an object"),
    "no events": (b'{"traceEvents": []}', "without any operator"),
    "nothing of use": (b'{"traceEvents": [{"ph": "M", "name": "process_name"}]}', "without any operator"),
    "wrong types": (b'{"traceEvents": [{"ph": "X", "name": 7}]}', "an event that cannot be read"),
    "an id that is none": (
        b'{"traceEvents": [{"ph": "X"}, {"ph": "X", "cat": "%b"}]}' % (b"x" * 200),
        'an event that cannot be read: {"ph": "X", "cat": "xxx',
    ),
    "text after the end": (b'{"traceEvents": []} and more }', "invalid JSON"),
    "gzip of nothing": (gzip.compress(b""), "the file is empty"),
    "gzip header only": (b"\x1f\x8bnonsense", "damaged gzip"),
}


@pytest.mark.parametrize("name", sorted(_BROKEN))
def test_broken_files_say_what_is_wrong(tmp_path: Path, name: str) -> None:
    text, message = _BROKEN[name]
    path = tmp_path / "trace.json"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(TraceError, match=message) as error:
        read_raw(path)
    assert error.value.where == str(path)
    assert "\n" not in error.value.what


def test_the_error_for_an_export_after_the_schedule_began_anew_says_how_to_export(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.frame("torch/profiler/profiler.py(1139): stop", 0, 90_000)
    builder.call("cudaDeviceSynchronize", 10_000, 5_000)
    with pytest.raises(TraceError, match="without any operator") as error:
        read_raw(builder.write(tmp_path / "trace.json"))
    assert "repeat=1" in str(error.value)
    builder.call("cudaLaunchKernel", 20_000, 5_000)
    assert len(read_raw(builder.write(tmp_path / "trace.json")).columns["call"]["ts"]) == 2


@pytest.mark.parametrize("chunk", [400, 1 << 22])
def test_truncated_anywhere_is_an_error(tmp_path: Path, chunk: int) -> None:
    text = _small().text()
    path = tmp_path / "trace.json"
    for length in [*range(10, len(text) - 1, 397), len(text) - 2, len(text) - 1]:
        path.write_bytes(text[:length])
        with pytest.raises(TruncatedTraceError):
            read_raw(path, chunk=chunk)
    path.write_bytes(gzip.compress(text)[:-9])
    with pytest.raises(TruncatedTraceError, match="gzip stream ends"):
        read_raw(path, chunk=chunk)


def test_folders_list_their_traces_once(tmp_path: Path) -> None:
    builder = _small()
    one = builder.write(tmp_path / "b.json")
    two = builder.write(tmp_path / "a.pt.trace.json.gz")
    (tmp_path / "run.json").write_text('{"status": "ok"}')
    (tmp_path / "notes.txt").write_text("x")
    assert find_traces([tmp_path]) == [two, one]
    assert find_traces([one, tmp_path, two]) == [one, two]


def test_a_folder_s_events_without_an_object_around_them_are_traces(tmp_path: Path) -> None:
    events = list(map(json.dumps, json.loads(_small().text())["traceEvents"]))
    (tmp_path / "array.json").write_text(f"[{','.join(events)}]")
    (tmp_path / "comment.json").write_text(f"// of rank 2\n[ // events\n{','.join(events)}]")
    (tmp_path / "lines.json").write_text("\n".join(events))
    (tmp_path / "other_array.json").write_text('[{"phase": "B"}]')
    (tmp_path / "other_lines.json").write_text('{"step": 1}\n{"step": 2}')
    assert [path.name for path in find_traces([tmp_path])] == ["array.json", "comment.json", "lines.json"]


@pytest.mark.parametrize("kept", [0, 8, 200])
@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_rank_of_a_folder_counts_as_a_trace_whatever_is_left_of_it(
    tmp_path: Path, kept: int, *, packed: bool
) -> None:
    whole = _small().write(tmp_path / "rank0.json")
    text = whole.read_bytes()
    damaged = tmp_path / ("rank1.json.gz" if packed else "rank1.json")
    damaged.write_bytes((gzip.compress(text) if packed else text)[:kept])
    expected = [whole] if kept == 8 and not packed else [whole, damaged]  # `{"schema` begins many files
    assert find_traces([tmp_path]) == expected


def test_folders_without_traces_and_missing_paths_are_errors(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"status": "ok"}')
    with pytest.raises(TraceError, match="without traces"):
        find_traces([tmp_path])
    for name in ("none", "x" * 300):
        with pytest.raises(TraceError, match="no such file or folder"):
            find_traces([tmp_path / name])


def test_events_with_an_impossible_time_are_left_out_and_counted(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.op("aten::odd", 2 * 10**15, -3)
    builder.kernel(2 * 10**15, 2 * 10**15 + 5_000, 100)
    builder.gpu("gemm", 0, 100, None)
    builder.add("mtia_counters", "x", 2 * 10**15, 10)
    raw = read_raw(builder.write(tmp_path / "trace.json"))
    assert raw.columns["gpu"]["ts"].tolist() == [5_000]
    unread = {"events": 1, "phases": [], "categories": ["mtia_counters"], "without_category": False}
    assert raw.notes == [
        note("impossible_events", events=1, kind="op"),
        note("impossible_events", events=1, kind="gpu"),
        note("events_not_read", **unread),
    ]


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        ("op", ("aten::mm", 5, 10)),
        ("call", ("cudaStreamSynchronize", 5, 10)),
        ("gpu", ("gemm", 5, 10, None)),
        ("frame", ("a.py(1): f", 5, 10)),
        ("step", (0, 5, 10)),
    ],
)
def test_a_trace_of_one_kind_of_event_has_all_its_tables(kind: str, event: tuple[Any, ...]) -> None:
    builder = TraceBuilder()
    getattr(builder, kind)(*event)
    entry = builder.summary()
    assert entry.window_ns == 10
    assert entry.gpu.activities == (1 if kind == "gpu" else 0)
    assert entry.syncs.count == {"call": 1, "gpu": None}.get(kind, 0)


def test_processes_give_the_same_in_the_same_order(tmp_path: Path) -> None:
    paths = []
    for rank in range(3):
        builder = TraceBuilder(distributedInfo={"rank": rank})
        training_step(builder, rank)
        paths.append(builder.write(tmp_path / f"{rank}.json"))
    here = read_each(read_trace, paths)
    there = read_each(read_trace, paths, workers=2)
    assert [trace.rank for trace in there] == [0, 1, 2]
    for one, other in zip(here, there, strict=True):
        assert one.kernels.equals(other.kernels)
        assert one.meta == other.meta


def test_an_error_keeps_its_words(tmp_path: Path) -> None:
    builder = TraceBuilder()
    training_step(builder)
    good = builder.write(tmp_path / "good.json")
    bad = tmp_path / "bad.json"
    bad.write_bytes(good.read_bytes()[:-50])
    with pytest.raises(TruncatedTraceError, match="ends too early") as error:
        read_each(read_trace, [good, bad], workers=2)
    assert str(bad) in str(error.value)


def test_as_many_processes_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "cpu_count", lambda: 8)
    for free, wanted in ((64 << 30, 8), (1 << 30, 2), (1 << 20, 1)):
        monkeypatch.setattr(psutil, "virtual_memory", lambda free=free: SimpleNamespace(available=free))
        assert read._workers(200 << 20) == wanted


@pytest.mark.parametrize(
    ("times", "shown", "step"),
    [
        ({"ts": "1722827893000123.250\t", "dur": 5.0}, '"1722827893000123.250\\t"', "look"),
        ({"ts": 1722827893000123450, "dur": 5_000}, "1722827893000123450", "1000"),
        ({"ts": "1722827893000123450", "dur": 5_000}, "1722827893000123450", "1000"),
        ({"ts": None, "dur": 5.0}, "null", "look"),
    ],
)
def test_times_that_cannot_be_read_are_shown(tmp_path: Path, times: dict[str, Any], shown: str, step: str) -> None:
    path = tmp_path / "trace.json"
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, **times}
    path.write_text(json.dumps({"traceEvents": [event] * 5}))
    with pytest.raises(TraceError) as error:
        read_raw(path)
    assert shown in error.value.what
    assert step in (error.value.next_step or "")
