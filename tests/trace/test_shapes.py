"""Traces of unusual shapes (bench/shapes.py): what is done grows with their size alone, and a page has its top rows."""

import cProfile
import json
import pstats
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from benches import bench_module
from builders import PINNED_D2H, TraceBuilder
from steptrace import cli
from steptrace.trace.link import read_trace

SHAPES = bench_module("shapes")


def _calls(shape: str, count: int, folder: Path) -> int:
    """How many functions are called for the figures of a trace of a shape."""
    path = folder / f"{count}.json"
    SHAPES.write(shape, count, path)
    profile = cProfile.Profile()
    profile.enable()
    assert cli.main(["analyze", str(path), "--out", str(folder / "out"), "--no-report"]) == 0
    profile.disable()
    calls: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    return calls


def _bytes(shape: str, count: int, folder: Path) -> int:
    """The most bytes in use at once for the figures of a trace of a shape."""
    path = folder / f"{count}.json"
    SHAPES.write(shape, count, path)
    tracemalloc.start()
    try:
        assert cli.main(["analyze", str(path), "--out", str(folder / "out"), "--no-report"]) == 0
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def _imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the analysis imports is no part of its work."""
    _calls("streams", 1, tmp_path_factory.mktemp("imported"))


_OFTEN = ("streams", "nested")


#: Labels with threads, and waits and syncs with streams, at sizes where a quadratic share shows.
_CROSSED = {"waits": 4_000, "labels_of_threads": 4_000, "waits_of_streams": 1_000, "syncs_of_streams": 1_000}


@pytest.mark.usefixtures("_imported")
@pytest.mark.parametrize(
    ("shape", "largest"),
    [
        *(
            pytest.param(shape, size, marks=[] if size > 1_000 else pytest.mark.slow)
            for shape, size in _CROSSED.items()
        ),
        *(pytest.param(s, 16_000, marks=[pytest.mark.slow, pytest.mark.timeout(0)]) for s in _CROSSED),
    ],
)
def test_crossed_shapes_need_calls_and_bytes_by_their_size(
    tmp_path: Path, shape: str, largest: int, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = (largest // 16, largest // 4, largest)
    for measure, negligible in ((_calls, 20_000), (_bytes, 1 << 20)):
        small, middle, large = (measure(shape, size, tmp_path) for size in sizes)
        capsys.readouterr()
        assert large - middle < 6 * max(middle - small, negligible)


@pytest.mark.usefixtures("_imported")
@pytest.mark.parametrize(
    "shape",
    [pytest.param(s, marks=[] if s in _OFTEN else pytest.mark.slow) for s in SHAPES.SHAPES if s != SHAPES.REFUSED],
)
def test_the_work_grows_with_the_size(tmp_path: Path, shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    small, middle, large = (_calls(shape, count, tmp_path) for count in (100, 400, 1600))
    capsys.readouterr()
    # Four times the events; the difference is 16 times as large if the work is quadratic.
    assert large - middle < 6 * max(middle - small, 20_000)


def test_the_page_shows_the_top_rows() -> None:
    _, page = SHAPES.analyze("threads", 800)
    assert page < 300_000


def test_more_gpus_than_a_process_has_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SHAPES.write("devices", 300, tmp_path / "trace.json")
    assert cli.main(["analyze", str(tmp_path / "trace.json"), "--out", str(tmp_path / "out"), "--no-report"]) == 2
    assert "GPU work on 300 GPUs" in capsys.readouterr().err


def _with_lost_waits(path: Path, count: int) -> None:
    """As many threads, each of which reads a value; the wait of every second one is lost."""
    builder = TraceBuilder()
    for thread in range(count):
        builder.op("aten::_local_scalar_dense", 1_000 * thread, 900, tid=thread)
        correlation = builder.call("cudaMemcpyAsync", 1_000 * thread + 10, 100, tid=thread)
        builder.gpu(PINNED_D2H, 1_000 * thread + 200, 100, correlation)
        if thread % 2:
            builder.call("cudaStreamSynchronize", 1_000 * thread + 200, 200, tid=thread)
    builder.write(path)


def _with_comments(path: Path, count: int) -> None:
    """As many events with a comment before each of them, and one within."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": k, "dur": 1} for k in range(count)
    ]
    lines = [f"// event\n{json.dumps(event)}".replace('"cat"', '/* kind */ "cat"') for event in events]
    path.write_text('{"traceEvents": [' + ",\n".join(lines) + "]}")


def _as_lines(path: Path, count: int) -> None:
    """As many events, one a line."""
    events = (
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": k, "dur": 1} for k in range(count)
    )
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


@pytest.mark.parametrize("write", [_with_lost_waits, _with_comments, _as_lines])
def test_reading_needs_calls_and_bytes_by_the_size(tmp_path: Path, write: Callable[[Path, int], None]) -> None:
    calls = []
    most = []
    for count in (1_000, 4_000, 16_000):
        write(tmp_path / "trace.json", count)
        profile = cProfile.Profile()
        profile.enable()
        read_trace(tmp_path / "trace.json")
        profile.disable()
        calls.append(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]
        tracemalloc.start()
        read_trace(tmp_path / "trace.json")
        most.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    for (small, middle, large), negligible in ((calls, 20_000), (most, 1 << 20)):
        assert large - middle < 6 * max(middle - small, negligible)
