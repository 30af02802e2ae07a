"""The profiled window of a study's training, in a trace that PyTorch has really written."""

import gzip
import json

import pytest

from steptrace.engine.recording import RecordingSettings, Request
from steptrace.rank import Rank
from steptrace.run_folder import read_steps
from variant_runs import log_of, measure


def events_of(run):
    with gzip.open(run / "trace.json.gz") as file:
        return json.load(file)["traceEvents"]


@pytest.mark.parametrize(("warmup", "active"), [(2, 3), (0, 1)])
def test_a_window_holds_exactly_its_active_steps(trained, warmup, active):
    run = trained({"profile.warmup": warmup, "profile.active": active})
    events = events_of(run)
    steps = [event["name"] for event in events if event["name"].startswith("ProfilerStep")]
    before = 2 + 4 + warmup  # steps that the engine has counted
    assert steps == [f"ProfilerStep#{before + i}" for i in range(active)]
    labels = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    for label in ("data", "forward", "loss", "backward", "optimizer", "calc loss"):
        assert labels.count(label) == active
    assert read_steps(run)["phase"].tolist().count("profiled") == active


def test_shapes_memory_and_stacks_are_recorded_when_asked_for(trained):
    events = events_of(trained(to="all"))
    assert any(event.get("cat") == "python_function" for event in events)
    assert any(event["name"] == "[memory]" for event in events)
    assert any("Input Dims" in event.get("args", {}) for event in events)
    assert not any("omegaconf" in event["name"] for event in events)  # a recorded step reads no configuration
    light = {f"profile.{name}": False for name in ("with_stack", "profile_memory", "record_shapes")}
    events = events_of(trained(light, to="light"))
    assert not any(event.get("cat") == "python_function" or event["name"] == "[memory]" for event in events)


#: A user's module, with a profiler that fails while it writes.
FAILS = """
import torch
from steptrace.workloads.masked_losses import IgnoreIndexLoss


def fail(_, path):
    with open(path, "w") as file:
        file.write("half a trace")
    raise OSError("disk full")


torch.profiler.profile.export_chrome_trace = fail


class Loss(IgnoreIndexLoss):
    pass
"""


@pytest.mark.usefixtures("forked_programs")
def test_a_trace_that_cannot_be_written_fails_the_run_and_leaves_nothing_behind(write_config, tmp_path):
    (tmp_path / "failing.py").write_text(FAILS)
    out = tmp_path / "run"
    status = measure(write_config({"loss": {"_target_": "failing.Loss"}, "python_path": [str(tmp_path)]}), out)
    assert status.status == "failed"
    assert "no complete trace of the profiled steps: OSError: disk full" in log_of(out)
    left = {path.name for path in out.rglob("*")}
    assert not any("trace" in name for name in left)
    assert "run.json" not in left


def test_each_rank_has_a_trace_of_its_own():
    request = Request("1", "out", RecordingSettings())
    names = [[file.name for file in request.files(Rank(rank, 2))] for rank in (0, 1)]
    assert names == [["trace.json.gz", "capture.json"], ["trace.rank1.json.gz", "capture.rank1.json"]]
