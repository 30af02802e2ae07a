"""How a started program is followed, and what it leaves."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from documents import fill
from figures import figures_in
from steptrace.commands.measured import sync_lines
from steptrace.documents.events import (
    EventsFile,
    FailedOnVirtualGpu,
    Fault,
    ModuleMissing,
    Started,
    Stepped,
    TorchMissing,
)
from steptrace.documents.probe import RankRecord
from steptrace.documents.syncs import SyncSite
from steptrace.engine.files import _move_traces
from steptrace.errors import LaunchError
from steptrace.jobs import process
from steptrace.jobs.process import Follower
from steptrace.launch.events import Progressed, RecordWritten, append
from steptrace.launch.result import Launched, Stop, require_steps, why, write_results
from steptrace.launch.settings import EVENTS, INJECT, VARIABLE
from steptrace.processes import in_words
from steptrace.run_folder import read_steps


def test_a_program_may_end_by_any_signal() -> None:
    for number in range(1, signal.NSIG):
        assert in_words(-number)


def test_a_trace_without_its_record_is_kept_and_no_earlier_record_stays_beside_it(tmp_path: Path) -> None:
    left = tmp_path / "left"
    run = tmp_path / "run"
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
    launched = Launched(exit_code=1, stopped=None, ranks=(rank,), out=tmp_path / "left")
    with pytest.raises(LaunchError) as raised:
        write_results(launched, tmp_path / "run", {"command": ["python", "train.py"], "cwd": "/"})
    assert figures_in(raised.value.what) == [1, 1]  # exit code, steps
    assert raised.value.next_step is not None


PYTHON = "/env/bin/python"


MISSING = {name: ModuleMissing(pid=7, module=name, python=PYTHON) for name in ("torch", "yaml")}


@pytest.mark.parametrize(
    ("events", "expected", "not_expected"),
    [
        ([MISSING["torch"]], f"{PYTHON} has no module 'torch'", "report"),
        ([MISSING["yaml"], FailedOnVirtualGpu(pid=7)], "'yaml'", "report"),
        ([FailedOnVirtualGpu(pid=7)], "please report it", "no module"),
        ([], "see the program's own output", "report"),
        ([MISSING["torch"], Fault(pid=7, report="a bug of ours")], "a bug of ours", "no module"),
    ],
)
def test_steptrace_is_only_said_to_be_at_fault_where_it_may_be(
    tmp_path: Path, events: list[Any], expected: str, not_expected: str
) -> None:
    launched = Launched(1, None, ranks=(), out=tmp_path, events=tuple(events), predicted=True)
    assert expected in why(launched)
    assert not_expected not in why(launched)


@pytest.mark.parametrize(("others", "expected"), [(0, "has no module 'torch'"), (1, "torch.optim optimizers")])
def test_a_program_without_steps_in_an_interpreter_without_pytorch_is_told_so(
    tmp_path: Path, others: int, expected: str
) -> None:
    """Where another process of the program has PyTorch, the first may be its launcher."""
    events = (Started(pid=7), TorchMissing(pid=7, python=PYTHON), *[Started(pid=8 + n) for n in range(others)])
    with pytest.raises(LaunchError) as raised:
        require_steps(Launched(0, None, ranks=(), out=tmp_path, events=events))
    assert expected in str(raised.value.next_step)


@pytest.mark.parametrize(("options", "count"), [(("-S",), 1), ((), 0)])
def test_an_interpreter_tells_that_it_has_no_pytorch(tmp_path: Path, options: tuple[str, ...], count: int) -> None:
    """With -S an interpreter sees no installed packages, nor our module, which is loaded here by hand."""
    settings = json.dumps({"out": str(tmp_path), "mode": "measure"})
    environment = {**os.environ, "PYTHONPATH": str(INJECT), VARIABLE: settings}
    code = "import sitecustomize" if options else "pass"
    subprocess.run([sys.executable, *options, "-c", code], env=environment, check=True)
    found = [event for event in EventsFile(tmp_path / EVENTS).new() if isinstance(event, TorchMissing)]
    assert [event.python for event in found] == [sys.executable] * count


_IMPORTING = "try:\n    import no_such_module_here\nexcept ImportError as error:\n    "


@pytest.mark.parametrize(
    ("code", "module"),
    [
        ("import no_such_module_here", "no_such_module_here"),
        (
            f"{_IMPORTING}raise RuntimeError('a part of the library') from error",
            "no_such_module_here",
        ),
        (f"{_IMPORTING}raise RuntimeError('needs no_such_module_here')", "no_such_module_here"),
        (f"{_IMPORTING}raise ImportError('an extra is missing')", "no_such_module_here"),
        (f"{_IMPORTING}1 / 0", None),
        (f"{_IMPORTING}raise ImportError('none of it') from None", None),
        ("1 / 0", None),
    ],
)
def test_an_interpreter_tells_which_module_it_lacks(tmp_path: Path, code: str, module: str | None) -> None:
    settings = json.dumps({"out": str(tmp_path), "mode": "measure"})
    environment = {**os.environ, "PYTHONPATH": str(INJECT), VARIABLE: settings}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    assert done.returncode == 1
    found = [event for event in EventsFile(tmp_path / EVENTS).new() if isinstance(event, ModuleMissing)]
    assert [(event.module, event.python) for event in found] == ([] if module is None else [(module, sys.executable)])


def test_the_error_for_a_program_killed_in_its_warm_up_says_so(tmp_path: Path) -> None:
    launched = Launched(
        exit_code=-9, stopped=Stop("signal", signal=15), ranks=(), out=tmp_path, events=(Started(pid=7), Stepped(pid=7))
    )
    with pytest.raises(LaunchError) as raised:
        require_steps(launched)
    assert figures_in(str(raised.value)) == [15]  # the launcher's signal, not the one that ended the program


def test_each_line_with_a_sync_is_listed_once() -> None:
    site = {"function": "f", "op": "aten::index", "label": None, "code": "x[mask]", "kind": "d2h_copy", "blocked_ns": 0}
    site |= {"exposed_idle_ns": None, "count_per_step": None, "ceiling_ns": None, "file": "a.py"}
    places = [(7, "forward", 2), (7, "backward", 5), *((line, "forward", 1) for line in range(20, 32))]
    sites = [SyncSite(**site, line=line, phase=phase, count=count) for line, phase, count in places]
    lines = sync_lines(sites, 3)
    assert lines[0] == "    2.33 x d2h_copy at a.py:7  x[mask]"
    assert lines[1] == "    0.33 x d2h_copy at a.py:20  x[mask]"
    assert (len(lines), figures_in(lines[-1])) == (13, [1])


@pytest.mark.parametrize("timed", [3, 1, 0])
def test_only_steps_of_all_ranks_count_where_one_has_ended_early(tmp_path: Path, timed: int) -> None:
    ranks = (_rank(0, 5, 100), _rank(1, timed, 200))
    launched = Launched(exit_code=0, stopped=None, ranks=ranks, out=tmp_path / "left")
    program = {"command": ["torchrun", "train.py"], "cwd": "/"}
    if timed < 2:
        with pytest.raises(LaunchError) as raised:
            write_results(launched, tmp_path / "run", program)
        assert figures_in(raised.value.what) == [0, 3 + timed]  # exit code, steps
    else:
        write_results(launched, tmp_path / "run", program)
        assert read_steps(tmp_path / "run")["step_ns"].tolist() == [200, 200, 200]


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(process.time, "monotonic", lambda: now[0])
    return now


def test_a_line_at_the_end_of_a_phase_and_while_a_step_is_waited_for(tmp_path, clock):
    lines = []
    follower = Follower(tmp_path, lines.append)
    follower.look()
    clock[0] += 31
    follower.look()
    append(tmp_path, Progressed("warm-up", 3, 10))
    follower.look()
    assert [figures_in(line) for line in lines] == [[31]]  # seconds
    append(tmp_path, Progressed("warm-up", 10, 10))
    append(tmp_path, Progressed("timed", 0, 30))
    follower.look()
    append(tmp_path, Progressed("timed", 12, 30))
    follower.look()
    clock[0] += 40
    follower.look()
    phases = [[part for part in line.split(", ") if "/" in part] for line in lines[1:]]
    assert phases == [["warm-up 10/10", "timed 0/30"], ["warm-up 10/10", "timed 12/30"]]
    assert figures_in(lines[-1])[-1] == 40  # seconds without a step


def test_a_program_is_measured_once_every_rank_has_a_final_record(tmp_path):
    follower = Follower(tmp_path, lambda _: None)
    states = [(0, "partial"), (1, "complete"), (0, "complete")]
    measured = []
    for rank, state in states:
        append(tmp_path, RecordWritten(rank, 2, state))
        follower.look()
        measured.append(follower.is_measured)
    assert measured == [False, False, True]


@pytest.mark.parametrize(("code", "named"), [(2, True), (0, False)])
def test_a_failed_program_whose_script_is_not_there_is_told_which_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, code: int, named: bool
) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    # An interpreter without PyTorch is not to blame for it.
    events = (Started(pid=7), TorchMissing(pid=7, python="python"))
    launched = Launched(code, None, (), tmp_path, events)
    with pytest.raises(LaunchError) as raised:
        require_steps(launched, ["python", "trian.py"])
    assert ("'trian.py'" in str(raised.value) and "'train.py'" in str(raised.value)) == named
    with pytest.raises(LaunchError) as raised:
        require_steps(launched, ["python", "train.py"])
    assert "'torch'" in str(raised.value)
