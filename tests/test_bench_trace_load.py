"""The bench of reading runs on its made-up trace and says what it compares."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benches import bench_module
from steptrace.cli import main

FIGURES = {"cpu_s": 1.0, "wall_s": 1.0, "peak_mb": 1.0}


@pytest.fixture
def bench() -> Any:
    return bench_module("trace_load")


def test_it_measures_every_way_on_a_trace_given(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What needs no pandas in processes of its own, which is measured in the same way, the rest in this one."""
    measure = bench.measure
    measure_python = bench._measure_python

    def measured(how: str, path: Path) -> dict[str, float]:
        if how == "json.load":
            return dict(measure(how, path))
        bench.ACTIONS[how](path)
        return FIGURES

    def python_measured(arguments: Sequence[str], source: Path) -> dict[str, float]:
        if arguments[-1] == "--help":
            return dict(measure_python(arguments, source))
        assert arguments == ["-c", "import numpy, pandas"] or main(arguments[2:]) == 0
        return FIGURES

    monkeypatch.setattr(bench, "measure", measured)
    monkeypatch.setattr(bench, "_measure_python", python_measured)
    monkeypatch.setattr(bench, "ROUNDS", 1)
    made = tmp_path / "made.json"
    made.write_text(json.dumps(bench.made_up_trace(2, 5)))
    monkeypatch.setattr("sys.argv", ["trace_load.py", str(made), "--mb", "0.3"])
    bench.main()
    output = capsys.readouterr().out
    assert output.startswith("made.json, repeated to 0 MB of JSON")
    for how in ("json.load", "columns", "steptrace"):
        assert f"\n{how} " in output
    assert "steptrace against json.load: " in output
    for command in ("analyze --no-report", "analyze", "analyze (small)", "--help"):
        assert re.search(rf"\n{re.escape(command)} +[\d.]+ +\d+\n", output)
    assert "times the import of numpy and pandas" in output
    assert "the same events in 0 and 0 MB" in output


def test_repeating_keeps_copies_apart(bench: Any, tmp_path: Path) -> None:
    """Ids, correlations and step numbers are of one copy only, so that links and steps stay what they were."""
    bench.write_repeated(bench.made_up_trace(2, 5), tmp_path / "out.json", 0.02)
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    launches = [e["args"]["correlation"] for e in events if e["cat"] == "cuda_runtime"]
    kernels = [e["args"]["correlation"] for e in events if e["cat"] == "kernel"]
    assert launches == kernels
    assert len(set(launches)) == len(launches) > 10
    steps = [e["name"] for e in events if e["cat"] == "user_annotation"]
    assert len(set(steps)) == len(steps) > 2
