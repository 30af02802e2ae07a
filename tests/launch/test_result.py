"""What a measured program left, made into the files of a run."""

from pathlib import Path
from typing import Any

import pytest

from steptrace.errors import LaunchError
from steptrace.launch.result import Named, _move_traces, write_results
from steptrace.launch.start import Launched
from steptrace.record import read_steps


def test_a_trace_without_its_record_is_kept_and_no_earlier_record_stays_beside_it(tmp_path: Path) -> None:
    left, run = tmp_path / "left", tmp_path / "run"
    for folder, name in ((left, "trace.json.gz"), (left, "rank1.trace.json.gz"), (left, "rank1.capture.json")):
        folder.mkdir(exist_ok=True)
        (folder / name).touch()
    run.mkdir()
    (run / "capture.json").touch()
    ranks = ({"rank": 0}, {"rank": 1, "trace": {"file": "rank1.trace.json.gz"}})
    launched = Launched(exit_code=0, stopped=None, ranks=ranks, out=left, started=2, failures=())
    assert _move_traces(launched, run) == ("trace.json.gz", "trace.rank1.json.gz")
    assert sorted(file.name for file in run.iterdir()) == [
        "capture.rank1.json",
        "trace.json.gz",
        "trace.rank1.json.gz",
    ]


def _rank(number: int, timed: int, step_ns: int) -> dict[str, Any]:
    row = {"wait_ns": 0, "batches": 0, "loss": None, "backwards": 1, "samples": 0, "skipped": False}
    return {
        **{"rank": number, "world_size": 2, "steps_seen": 3 + timed, "state": "complete", "mode": "measure"},
        **{"rows": [{**row, "phase": "timed", "step_ns": step_ns} for _ in range(timed)], "gpu": None},
        **{"cwd": "/", "python": "3.11.7", "torch": "2.13.0", "cuda": None, "optimizers": [], "argv": [], "pid": 1},
    }


@pytest.mark.parametrize("timed", [3, 1, 0])
def test_only_steps_of_all_ranks_count_where_one_has_ended_early(tmp_path: Path, timed: int) -> None:
    ranks = (_rank(0, 5, 100), _rank(1, timed, 200))
    launched = Launched(exit_code=0, stopped=None, ranks=ranks, out=tmp_path / "left", started=2, failures=())
    program = {"command": ["torchrun", "train.py"], "cwd": "/"}
    if timed < 2:
        with pytest.raises(LaunchError, match=f"ended after {3 + timed} steps, before two were timed"):
            write_results(launched, tmp_path / "run", Named(), program)
    else:
        write_results(launched, tmp_path / "run", Named(), program)
        assert read_steps(tmp_path / "run")["step_ns"].tolist() == [200, 200, 200]
