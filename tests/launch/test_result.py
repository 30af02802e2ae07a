"""How a started program is followed, and what it leaves."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from documents import fill
from steptrace.commands.measured import sync_lines
from steptrace.documents.probe import RankRecord
from steptrace.documents.syncs import SyncSite
from steptrace.engine.files import _move_traces
from steptrace.errors import LaunchError
from steptrace.launch import start
from steptrace.launch.result import Launched, require_steps, why, write_results
from steptrace.launch.settings import INJECT, PROGRESS, VARIABLE
from steptrace.launch.start import StatusLine
from steptrace.record import read_steps


def test_a_trace_without_its_record_is_kept_and_no_earlier_record_stays_beside_it(tmp_path: Path) -> None:
    left, run = tmp_path / "left", tmp_path / "run"
    for folder, name in ((left, "trace.json.gz"), (left, "trace.rank1.json.gz"), (left, "capture.rank1.json")):
        folder.mkdir(exist_ok=True)
        (folder / name).touch()
    run.mkdir()
    (run / "capture.json").touch()
    second = {"state": "recorded", "message": "", "file": "trace.rank1.json.gz"}
    ranks = (fill(RankRecord, {"rank": 0}), fill(RankRecord, {"rank": 1, "trace": second}))
    assert _move_traces(ranks, left, run) == ("trace.json.gz", "trace.rank1.json.gz")
    assert sorted(file.name for file in run.iterdir()) == [
        "capture.rank1.json",
        "trace.json.gz",
        "trace.rank1.json.gz",
    ]


def _rank(number: int, timed: int, step_ns: int, **changes: Any) -> RankRecord:
    row = {"wait_ns": 0, "batches": 0, "loss": None, "backwards": 1, "samples": 0, "skipped": False}
    row |= {"new_leader": False}
    rows = [{**row, "phase": "timed", "step_ns": step_ns} for _ in range(timed)]
    rank = {"rank": number, "world_size": 2, "steps_seen": 3 + timed, "state": "complete", "rows": rows}
    rank |= {"cwd": "/", "python": "3.11.7", "torch": "2.13.0"}
    return fill(RankRecord, rank | changes)


def test_the_error_for_a_program_that_failed_too_early_says_so(tmp_path: Path) -> None:
    rank = _rank(0, 1, 100, steps_seen=1, state="partial")
    launched = Launched(exit_code=1, stopped=None, ranks=(rank,), out=tmp_path / "left", started=1, failures=())
    with pytest.raises(LaunchError) as raised:
        write_results(launched, tmp_path / "run", {"command": ["python", "train.py"], "cwd": "/"})
    assert raised.value.what == "the program ended with exit code 1 after 1 step, before two were timed"
    assert raised.value.next_step == "see the program's own output"


PYTHON = "/env/bin/python"


@pytest.mark.parametrize(
    ("left", "expected", "not_expected"),
    [
        ({"lacks.7": json.dumps({"module": "torch", "python": PYTHON})}, f"{PYTHON} has no module 'torch'", "report"),
        ({"lacks.7": json.dumps({"module": "yaml", "python": PYTHON}), "may_be_ours.7": ""}, "'yaml'", "report"),
        ({"may_be_ours.7": ""}, "please report it", "no module"),
        ({}, "see the program's own output", "report"),
        ({"fault.7": "a bug of ours", "lacks.7": "{"}, "a bug of ours", "no module"),
        ({"lacks.7": "no JSON"}, "see the program's own output", "no module"),
    ],
)
def test_steptrace_is_only_said_to_be_at_fault_where_it_may_be(
    tmp_path: Path, left: dict[str, str], expected: str, not_expected: str
) -> None:
    for name, text in left.items():
        (tmp_path / name).write_text(text)
    launched = Launched(1, None, ranks=(), out=tmp_path, started=1, failures=(), predicted=True)
    assert expected in why(launched)
    assert not_expected not in why(launched)


@pytest.mark.parametrize(("code", "module"), [("import no_such_module_here", "no_such_module_here"), ("1 / 0", None)])
def test_an_interpreter_tells_which_module_it_lacks(tmp_path: Path, code: str, module: str | None) -> None:
    settings = json.dumps({"out": str(tmp_path), "mode": "measure"})
    environment = {**os.environ, "PYTHONPATH": str(INJECT), VARIABLE: settings}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    assert done.returncode == 1
    found = [json.loads(file.read_text()) for file in tmp_path.glob("lacks.*")]
    assert found == ([] if module is None else [{"module": module, "python": sys.executable}])


def test_the_error_for_a_program_killed_in_its_warm_up_says_so(tmp_path: Path) -> None:
    (tmp_path / "stepped.7").touch()
    launched = Launched(exit_code=-9, stopped="signal 15", ranks=(), out=tmp_path, started=1, failures=())
    with pytest.raises(LaunchError) as raised:
        require_steps(launched)
    assert (raised.value.where, raised.value.what) == ("the program was stopped", "signal 15, before a step was timed")


def test_each_line_with_a_sync_is_listed_once() -> None:
    site = {"function": "f", "op": "aten::index", "label": None, "code": "x[mask]", "kind": "d2h_copy", "blocked_ns": 0}
    site |= {"exposed_idle_ns": None, "count_per_step": None, "ceiling_ns": None, "file": "a.py"}
    places = [(7, "forward", 2), (7, "backward", 5), *((line, "forward", 1) for line in range(20, 32))]
    sites = [SyncSite(**site, line=line, phase=phase, count=count) for line, phase, count in places]
    lines = sync_lines(sites, 3)
    assert lines[0] == "    2.33 x d2h_copy at a.py:7  x[mask]"
    assert lines[1] == "    0.33 x d2h_copy at a.py:20  x[mask]"
    assert (len(lines), lines[-1]) == (13, "    1 more line: on the page, and in summary.json")


@pytest.mark.parametrize("timed", [3, 1, 0])
def test_only_steps_of_all_ranks_count_where_one_has_ended_early(tmp_path: Path, timed: int) -> None:
    ranks = (_rank(0, 5, 100), _rank(1, timed, 200))
    launched = Launched(exit_code=0, stopped=None, ranks=ranks, out=tmp_path / "left", started=2, failures=())
    program = {"command": ["torchrun", "train.py"], "cwd": "/"}
    if timed < 2:
        with pytest.raises(LaunchError, match=f"exit code 0 after {3 + timed} steps, before two were timed"):
            write_results(launched, tmp_path / "run", program)
    else:
        write_results(launched, tmp_path / "run", program)
        assert read_steps(tmp_path / "run")["step_ns"].tolist() == [200, 200, 200]


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(start.time, "monotonic", lambda: now[0])
    return now


def test_a_line_at_the_end_of_a_phase_and_while_a_step_is_waited_for(tmp_path, clock):
    lines = []
    line = StatusLine(tmp_path, lines.append)
    line.look()
    clock[0] += 31
    line.look()
    (tmp_path / PROGRESS).write_text("warm-up 3/10")
    line.look()
    assert lines == ["no step yet after 31 s"]
    (tmp_path / PROGRESS).write_text("warm-up 10/10, timed 0/30")
    line.look()
    (tmp_path / PROGRESS).write_text("warm-up 10/10, timed 12/30")
    line.look()
    clock[0] += 40
    line.look()
    assert lines[1:] == ["warm-up 10/10, timed 0/30", "warm-up 10/10, timed 12/30, no step for 40 s"]
