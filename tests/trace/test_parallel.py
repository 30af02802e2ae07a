"""Traces read in processes of their own give what they give in this one, errors included."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from builders import TraceBuilder, training_step
from steptrace.errors import TruncatedTraceError
from steptrace.trace import read
from steptrace.trace.link import read_trace
from steptrace.trace.read import read_each


def test_processes_give_the_same_in_the_same_order(tmp_path: Path) -> None:
    paths = []
    for rank in range(3):
        builder = TraceBuilder(distributedInfo={"rank": rank})
        training_step(builder, rank)
        paths.append(builder.write(tmp_path / f"{rank}.json"))
    here, there = read_each(read_trace, paths), read_each(read_trace, paths, workers=2)
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
