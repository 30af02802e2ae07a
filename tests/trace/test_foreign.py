"""Files that are no plain trace: a zip archive with one is read, others are named in a sentence with a next step."""

import gzip
import io
import json
import pickle
import tarfile
import zipfile
from pathlib import Path

import pytest

from builders import TraceBuilder, training_step
from steptrace.errors import TraceError
from steptrace.trace.link import read_trace


def _text() -> bytes:
    builder = TraceBuilder()
    training_step(builder)
    return builder.text()


def _zip(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("member", ["trace.json", "logs/run.pt.trace.json", "trace.json.gz"])
@pytest.mark.parametrize("name", ["trace.zip", "trace.json"])
def test_a_zip_with_one_trace_is_read(tmp_path: Path, member: str, name: str) -> None:
    content = gzip.compress(_text()) if member.endswith(".gz") else _text()
    others = {"__MACOSX/._trace.json": b"\0\5", "logs/": b"", "readme.txt": b"x", ".hidden.json": b"{}"}
    trace = read_trace(_zip(tmp_path / name, {member: content, **others}))
    assert len(trace.steps) == 1


@pytest.mark.parametrize(
    ("members", "what"),
    [
        ({"a.json": b"{}", "b.json.gz": b"{}"}, "with 2 files"),
        ({"readme.txt": b"x"}, "with no file"),
    ],
)
def test_a_zip_with_none_or_several_says_so(tmp_path: Path, members: dict[str, bytes], what: str) -> None:
    path = _zip(tmp_path / "traces.zip", members)
    with pytest.raises(TraceError, match=what) as error:
        read_trace(path)
    assert error.value.next_step is not None


def test_a_damaged_zip_is_an_error(tmp_path: Path) -> None:
    path = _zip(tmp_path / "trace.zip", {"trace.json": _text() * 10})
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:60] + b"\0" * 40 + whole[100:]):
        path.write_bytes(content)
        with pytest.raises(TraceError) as error:
            read_trace(path)
        assert error.value.where == str(path)


def _tar() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        info = tarfile.TarInfo("trace.json")
        info.size = 2
        archive.addfile(info, io.BytesIO(b"{}"))
    return packed.getvalue()


_OTHERS: dict[str, tuple[bytes, str]] = {
    "snapshot.pickle": (pickle.dumps({"segments": []}), "memory_viz"),
    "snapshot.dat": (pickle.dumps({"segments": []}, protocol=2), "memory_viz"),
    "old.pkl": (pickle.dumps([1], protocol=0), "memory_viz"),
    "trace.pftrace": (b"\n\x10\x08\x01" * 9, "traceconv"),
    "run.perfetto-trace": (b"\n\x10\x08\x01" * 9, "traceconv"),
    "report.nsys-rep": (b"\x01\x02binary", "torch.profiler"),
    "report.qdrep": (b"\x01\x02binary", "torch.profiler"),
    "report.ncu-rep": (b"NVR\0\0", "torch.profiler"),
    "report.sqlite": (b"SQLite format 3\0" + bytes(99), "torch.profiler"),
    "events.out.tfevents.17.host.1.0": (b"\x18\0\0\0\0\0\0\0\xa3\x7fK", ".pt.trace.json"),
    "host.xplane.pb": (b"\n\x10\x08\x01" * 9, "XProf"),
    "trace.json.zst": (b"\x28\xb5\x2f\xfd" + bytes(9), "unpack"),
    "trace.json.xz": (b"\xfd7zXZ\0" + bytes(9), "unpack"),
    "trace.json.bz2": (b"BZh91AY&SY", "unpack"),
    "trace.7z": (b"7z\xbc\xaf\x27\x1c\0", "unpack"),
    "trace.tar": (_tar(), "unpack"),
    "trace.tar.gz": (gzip.compress(_tar()), "unpack"),
    "page.json": (b"<!DOCTYPE html><html>", "download"),
    "lfs.json": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "git lfs pull"),
}


@pytest.mark.parametrize("name", _OTHERS)
def test_other_files_are_named_with_what_to_do(tmp_path: Path, name: str) -> None:
    content, next_step = _OTHERS[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert next_step in str(error.value.next_step)
    assert "\n" not in error.value.what


@pytest.mark.parametrize(
    "others",
    [{"config.json": b'{"a": 1}'}, {"notes.txt": b"a", "deep/metadata.json": b"[]"}, {"b.json.gz": b"\x1f\x8b"}],
)
def test_the_only_file_of_a_zip_that_holds_events_is_read(tmp_path: Path, others: dict[str, bytes]) -> None:
    trace = read_trace(_zip(tmp_path / "traces.zip", {"out/run.json": _text(), **others}))
    assert len(trace.ops)


def test_a_trace_in_a_zip_needs_no_ending(tmp_path: Path) -> None:
    assert len(read_trace(_zip(tmp_path / "traces.zip", {"out/trace": _text()})).ops)


def test_an_empty_zip_says_so(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no file"):
        read_trace(_zip(tmp_path / "traces.zip", {}))


def test_a_trace_that_is_gzipped_twice_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(gzip.compress(_text())))
    assert len(read_trace(path).ops)


_EVENT = ({"ph": "X", "name": "a", "pid": 7, "tid": 1, "ts": 1, "dur": 1},)
_JSON: dict[str, tuple[object, str]] = {
    "rocprofv3": ({"rocprofiler-sdk-tool": [{"metadata": {}, "buffer_records": {}}]}, "pftrace"),
    "execution trace": ({"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [{"id": 1}]}, "torch.profiler"),
    "chakra": ({"workload_graph": [{"Id": 1}]}, "torch.profiler"),
    "memory timeline": ([[0, 1], [[1, 2], [3, 4]]], "memory snapshot"),
    "flight recorder": ({"version": "2.4", "pg_config": {}, "pg_status": {}, "entries": []}, "torch.profiler"),
    "cpuprofile": ({"nodes": [{"id": 1, "callFrame": {}}], "startTime": 1}, "torch.profiler"),
    "speedscope": ({"$schema": "https://www.speedscope.app/file-format-schema.json", "profiles": []}, "torch.profiler"),
    "JAX": (
        {"metadata": {"highres-ticks": True}, "traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1}]},
        "XProf",
    ),
    "VizTracer": (
        {"traceEvents": [{"ph": "X", "cat": "fee", "name": "a", "ts": 1, "dur": 1}], "viztracer_metadata": {}},
        "vizviewer",
    ),
    "JAX for Perfetto": (
        {"traceEvents": [{"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "/host:CPU"}}, *_EVENT]},
        "XProf",
    ),
    "TensorFlow 1": ({"traceEvents": [{**_EVENT[0], "cat": "Op"}, {**_EVENT[0], "cat": "DataFlow"}]}, "chrome://"),
    "DevTools": ([{**_EVENT[0], "cat": "disabled-by-default-v8.cpu_profiler,v8"}], "torch.profiler"),
    "torch.compile": ([{**_EVENT[0], "ph": "B", "cat": "dynamo_timed"}], "Perfetto"),
    "Proton": ([{"frame": {"name": "ROOT"}, "metrics": {"count": 0}, "children": []}, {}], "torch.profiler"),
    "Gaudi": ({"traceEvents": [{**_EVENT[0], "cat": "hpu_op"}]}, "Perfetto"),
    "flight recorder of old": (
        {"version": "2.4", "rank": 0, "entries": [{"frames": [], "record_id": 0, "collective_seq_id": 1}]},
        "torch.profiler",
    ),
    "memory snapshot": ({"segments": [{"address": 1, "blocks": []}], "device_traces": [[]]}, "pickle"),
}
_LINES = {
    "Nsight Systems": b'{"Type":48,"TraceProcessEvent":{"startNs":"1"}}\n{"Type":79,"CudaEvent":{"startNs":"2"}}\n',
    "Nsight Systems, strings": b'{"type":"String","id":"1"}\n{"Type":79,"CudaEvent":{"startNs":"2"}}\n',
    "JSON Lines": b'{"name":"a","args":{"x":1},"ph":"X","ts":1} {"name":"b","args":{},"ph":"X","ts":2}\n',
}


@pytest.mark.parametrize("name", [*_JSON, *_LINES])
def test_json_of_another_tool_is_named_with_what_to_do(tmp_path: Path, name: str) -> None:
    content, names = (json.dumps(_JSON[name][0]).encode(), _JSON[name][1]) if name in _JSON else (_LINES[name], "")
    path = tmp_path / "some.json"
    path.write_bytes(content)
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert names in str(error.value.next_step)
    if names == "":
        assert error.value.next_step is not None


def test_large_json_of_another_tool_is_named_before_it_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(b'{"rocprofiler-sdk-tool":[{"metadata":"' + b"x" * (40 << 20) + b'"}]}')
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert "pftrace" in str(error.value.next_step)


@pytest.mark.parametrize("first", [{"nodes": [{"id": 1, "callFrame": {}}]}, {"schema": "1", "nodes": [1]}])
def test_keys_of_other_tools_beside_events_do_not_matter(tmp_path: Path, first: dict[str, object]) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(json.dumps({**first, **json.loads(_text())}).encode())
    assert len(read_trace(path).steps) == 1


@pytest.mark.parametrize("name", ["[TP{:02d}] 4037", "{}"])
def test_the_merged_traces_of_several_ranks_are_refused(tmp_path: Path, name: str) -> None:
    """Tools merge the ranks' traces for a viewer and tell them apart by the process alone, so that ids collide."""
    content = json.loads(_text())
    events = content["traceEvents"]
    content["traceEvents"] = [{**event, "pid": name.format(rank)} for rank in range(2) for event in events]
    path = tmp_path / "merged.trace.json"
    path.write_text(json.dumps(content))
    with pytest.raises(TraceError, match="2 processes") as error:
        read_trace(path)
    assert error.value.next_step is not None
