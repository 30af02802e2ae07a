"""Captures from trainings that run: of one process and of all ranks."""

import gzip
import json
import os
import socket
import time
from pathlib import Path

import pytest
import torch

from steptrace.cli import main

pytestmark = pytest.mark.usefixtures("forked_programs")


def _steps(trace: Path) -> list[str]:
    with gzip.open(trace) as file:
        events = json.load(file)["traceEvents"]
    return [event["name"] for event in events if event["name"].startswith(("ProfilerStep", "Unfinished"))]


def _record(folder: Path, name: str = "capture.json") -> dict:
    return json.loads((folder / name).read_text())


def test_a_job_is_captured_and_trains_as_if_it_had_not_been(start, while_stepping, tmp_path, capsys):
    job, plain = start(), start("plain", captured=False)
    job.ready()
    job.run(3)

    # By command, waiting for it
    out = tmp_path / "one"
    command = ["capture", str(job.pid), "--steps", "3", "--no-memory", "--out", str(out), "--wait", "--timeout", "120"]
    assert while_stepping(command, [job]) == 0
    said = capsys.readouterr().out
    record = _record(out)
    first = record["steps"]["first"]
    assert f"asked process {job.pid}: 3 steps after 1 of warm-up" in said
    assert f"process {job.pid}: recorded: steps {first} to {first + 2}" in said
    assert f"next: steptrace analyze {out} --out" in said
    assert sorted(path.name for path in out.iterdir()) == ["capture.json", "trace.json.gz"]
    assert _steps(out / "trace.json.gz") == [f"ProfilerStep#{first + i}" for i in range(3)]
    assert (record["state"], record["asked_by"], record["pid"], record["rank"]) == (
        "recorded",
        "command",
        job.pid,
        None,
    )
    assert record["asked"] == {"steps": 3, "warmup": 1, "stacks": True, "shapes": True, "memory": False}
    assert record["torch"] == torch.__version__
    assert record["command"][1].endswith("training.py")

    # While another profiler is on, it is refused
    job.send("profile")
    job.answer()
    refused = tmp_path / "refused"
    command = ["capture", str(job.pid), "--out", str(refused), "--wait"]
    assert while_stepping(command, [job]) == 2
    job.send("unprofile")
    job.answer()
    assert "a profiler is already recording in this process" in capsys.readouterr().err
    assert [path.name for path in refused.iterdir()] == ["capture.json"]
    assert (_record(refused)["state"], _record(refused)["trace"]) == ("refused", None)

    # The answer is the same
    steps = job.run(1)
    assert job.end() == 0, job.said()
    plain.ready()
    assert plain.run(steps) == steps
    assert plain.end() == 0
    ours, theirs = torch.load(job.weights), torch.load(plain.weights)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)

    # And the trace can be read
    assert main(["analyze", str(out), "--out", str(tmp_path / "analysis"), "--no-report"]) == 0
    (entry,) = json.loads((tmp_path / "analysis" / "summary.json").read_text())["traces"]
    assert [step["index"] for step in entry["steps"]] == [first, first + 1, first + 2]
    assert main(["capture", str(job.pid)]) == 2
    assert f"process {job.pid}: there is no such process" in capsys.readouterr().err


def test_all_ranks_record_the_same_steps(start, while_stepping, tmp_path, capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    ranks = [start(f"rank{rank}", env={**env, "RANK": str(rank)}) for rank in range(2)]
    for rank in ranks:
        rank.ready()
    assert main(["capture", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["pid", "rank", "steps", "running", "state", "script"]
    assert [line.split()[:5] for line in lines[1:]] == [[str(ranks[i].pid), str(i), "of", "2", "0"] for i in range(2)]

    # By the number of a rank, then by that of their common ancestor, which is this process
    for pid, out in ((ranks[1].pid, tmp_path / "one"), (os.getpid(), tmp_path / "two")):
        command = ["capture", "--all-ranks", str(pid), "--out", str(out), "--wait", "--timeout", "120"]
        assert while_stepping(command, ranks) == 0, capsys.readouterr()
        records = [_record(out, f"rank{rank}.capture.json") for rank in range(2)]
        assert [record["rank"] for record in records] == [0, 1]
        assert records[0]["steps"] == records[1]["steps"]
        assert records[0]["steps"]["count"] == 2
    for rank in ranks:
        rank.send("end")
    assert [rank.process.wait(60) for rank in ranks] == [0, 0]
    ours, theirs = (torch.load(rank.weights) for rank in ranks)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)

    assert main(["analyze", str(out), "--out", str(tmp_path / "analysis"), "--no-report"]) == 0
    traces = json.loads((tmp_path / "analysis" / "summary.json").read_text())["traces"]
    assert [(trace["rank"], trace["world_size"]) for trace in traces] == [(0, 2), (1, 2)]
    assert [step["index"] for step in traces[0]["steps"]] == [step["index"] for step in traces[1]["steps"]]


def test_a_job_that_ends_meanwhile_leaves_what_it_has_recorded(start, tmp_path, capsys):
    job = start().ready()
    job.run(1)
    out = tmp_path / "out"
    assert main(["capture", str(job.pid), "--steps", "50", "--out", str(out)]) == 0
    time.sleep(1.1)  # when it looks again
    job.run(5)
    assert job.end() == 0, job.said()
    record = _record(out)
    # The request is seen after step 1; one step warms up, three are whole.
    assert record["state"] == "partial"
    assert record["steps"] == {"first": 3, "last": 5, "count": 3}
    assert "ended after 3 of 50 steps" in record["message"]
    assert _steps(out / "trace.json.gz") == ["ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5", "Unfinished step #6"]
    assert main(["capture", "--list"]) == 0
    assert capsys.readouterr().out.endswith("no process can be captured\n")
