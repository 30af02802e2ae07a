"""Files that are no plain trace: a zip archive with one is read, others are named in a sentence with a next step."""

import gzip
import io
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
