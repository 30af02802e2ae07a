import gzip
import json

import pytest
from omegaconf import OmegaConf

from steptrace.train import passes
from steptrace.train.passes import profile_steps, trace_name
from steptrace.train.setup import training


def window(wait, warmup, active, *, with_stack=False):
    counts = {"wait": wait, "warmup": warmup, "active": active}
    return OmegaConf.create({**counts, "record_shapes": True, "profile_memory": True, "with_stack": with_stack})


def events_of(trace):
    with gzip.open(trace) as file:
        return json.load(file)["traceEvents"]


@pytest.mark.parametrize(("wait", "warmup", "active"), [(1, 2, 3), (0, 1, 1), (2, 0, 2)])
@pytest.mark.filterwarnings("ignore:Profiler won't be using warmup")
def test_a_window_holds_exactly_its_active_steps(make_config, tmp_path, wait, warmup, active):
    trace = tmp_path / "trace.json.gz"
    with training(make_config(), 7) as parts:
        timings = profile_steps(parts, window(wait, warmup, active), trace)
    events = events_of(trace)
    steps = [event["name"] for event in events if event["name"].startswith("ProfilerStep")]
    assert steps == [f"ProfilerStep#{wait + warmup + i}" for i in range(active)]
    assert len(timings) == active
    labels = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    for label in ("data", "forward", "loss", "backward", "optimizer", "calc loss"):
        assert labels.count(label) == active
    assert list(tmp_path.iterdir()) == [trace]


def test_a_profiled_step_is_timed_without_the_profiler_s_own_work(make_config, tmp_path):
    """Writing the trace happens after the last step, within the profiler's step()."""
    with training(make_config(), 7) as parts:
        timings = profile_steps(parts, window(0, 1, 3), tmp_path / "trace.json.gz")
    steps_us = [e["dur"] for e in events_of(tmp_path / "trace.json.gz") if e["name"].startswith("ProfilerStep")]
    # A step's own marks stand inside its annotation.
    for timing, step_us in zip(timings, steps_us, strict=True):
        assert 0 < timing.step_ns <= step_us * 1000


def test_shapes_memory_and_stacks_are_recorded_when_asked_for(make_config, tmp_path):
    trace = tmp_path / "trace.json.gz"
    with training(make_config(), 7) as parts:
        profile_steps(parts, window(0, 1, 1, with_stack=True), trace)
    events = events_of(trace)
    assert any(event.get("cat") == "python_function" for event in events)
    assert any(event["name"] == "[memory]" for event in events)
    assert any("Input Dims" in event.get("args", {}) for event in events)
    assert not any("omegaconf" in event["name"] for event in events)  # a recorded step reads no configuration


def test_a_trace_that_cannot_be_written_leaves_nothing_behind(make_config, tmp_path, monkeypatch):
    def fail(_, path):
        with open(path, "w") as file:  # noqa: PTH123 - as PyTorch does
            file.write("half a trace")
        raise OSError("disk full")

    monkeypatch.setattr(passes.profile, "export_chrome_trace", fail)
    with training(make_config(), 7) as parts, pytest.raises(OSError, match="disk full"):
        profile_steps(parts, window(0, 1, 1), tmp_path / "trace.json.gz")
    assert list(tmp_path.iterdir()) == []


def test_each_rank_has_a_trace_of_its_own():
    assert [trace_name(rank) for rank in range(3)] == ["trace.json.gz", "trace.rank1.json.gz", "trace.rank2.json.gz"]
