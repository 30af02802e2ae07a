"""The phases of a measurement, driven by hand: what is timed, what waits for the device, what ends early."""

import time
from pathlib import Path

import pytest
import torch

from steptrace.engine import measure
from steptrace.engine.clock import Clock
from steptrace.engine.measure import Measurement, MeasureSettings
from steptrace.engine.recording import RecordingSettings
from steptrace.engine.session import Session
from steptrace.engine.steps import Step


def plain_step(number: int) -> Step:
    return Step(1, 1, 2, 0, losses=[torch.tensor(float(number))])


def go_through(measurement: Measurement, make_step=plain_step) -> int:
    """Take steps until the phases end; return how many there were."""
    phases = measurement.phases()
    number = 0
    next(phases)
    if measurement._session.joined:
        measurement.begin()
    while True:
        number += 1
        try:
            phases.send(make_step(number))
        except StopIteration:
            return number


def measurement(folder: Path, warmup=2, steps=3, window=None, *, joined=False, at_most_s=None, **more) -> Measurement:
    """A measurement of a program that has joined its session, or has not."""
    calls = dict.fromkeys(("begin", "step_ended", "step_failed"), lambda *_: None)
    session = Session(explains=window is not None, **calls)
    session.joined = joined
    return Measurement(MeasureSettings(folder, warmup, steps, window, at_most_s), session, **more)


def test_every_timed_step_has_a_row_with_its_loss(tmp_path):
    progress: list[tuple[str, int, int]] = []
    made = measurement(tmp_path, joined=True, progress=lambda *call: progress.append(call))
    assert go_through(made) == 5
    rows = made.record["rows"]
    assert [row.phase for row in rows] == ["warmup"] * 2 + ["timed"] * 3
    assert [row.loss for row in rows] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert all(row.step_ns > 0 for row in rows)
    assert progress == [
        *(("warm-up", done, 2) for done in range(3)),
        *(("timed", done, 3) for done in range(4)),
    ]
    assert (made.record["gpu"], made.record["clock"], made.record["nvml"]) == (None, "monotonic", None)


def test_the_first_step_of_somebody_s_program_has_no_time(tmp_path):
    made = measurement(tmp_path)
    go_through(made)
    assert [row.loss for row in made.record["rows"]] == [2.0, 3.0, 4.0, 5.0]


def test_without_a_warm_up_the_first_step_begins_when_the_program_says_so(tmp_path):
    made = measurement(tmp_path, warmup=0, steps=1, joined=True)
    phases = made.phases()
    next(phases)
    time.sleep(0.3)  # as the program builds its model
    begun_at = time.monotonic_ns()
    made.begin()
    with pytest.raises(StopIteration):
        phases.send(plain_step(1))
    (row,) = made.record["rows"]
    assert row.phase == "timed"
    assert row.step_ns < time.monotonic_ns() - begun_at


@pytest.mark.parametrize(("at_most_s", "warmup", "timed"), [(0.0, 3, 5), (600.0, 6, 9), (None, 6, 9)])
def test_a_phase_ends_when_its_time_is_over(tmp_path, at_most_s, warmup, timed):
    made = measurement(tmp_path, 6, 9, at_most_s=at_most_s, joined=True)
    assert go_through(made) == warmup + timed
    figures = {"steps": 5, "planned": 9, "at_most_s": 0.0, "slow_step_s": None}
    shortened = [] if timed == 9 else [{"code": "fewer_timed_steps", "figures": figures}]
    assert made.record["notes"] == shortened


def slow_steps(monkeypatch, seconds: float) -> None:
    """Each step takes so many seconds by the host's clock, from the second on; the first takes ten."""
    now = [0.0]
    begun = [0]
    monkeypatch.setattr(measure.time, "monotonic", lambda: now[0])
    original = Measurement._next

    def timed_next(self, phase, done, total):
        generator = original(self, phase, done, total)
        next(generator)
        step = yield
        begun[0] += 1
        now[0] += 10.0 if begun[0] == 1 else seconds
        try:
            generator.send(step)
        except StopIteration as ended:
            return ended.value

    monkeypatch.setattr(Measurement, "_next", timed_next)


@pytest.mark.parametrize(
    ("seconds", "phases"),
    [
        (0.1, {"warm-up": 5, "timed": 9, "under the profiler": 7, "watched": 1}),
        # A quarter of at_most_s holds two steps of 2.4 s; the limit holds nine.
        (2.4, {"warm-up": 5, "timed": 9, "under the profiler": 4, "watched": 1}),
        (3.5, {"warm-up": 2, "timed": 3, "under the profiler": 2, "watched": 1}),
        (200.0, {"warm-up": 2, "timed": 3, "under the profiler": 2, "watched": 1}),
    ],
)
def test_slow_steps_have_few_steps_in_each_phase(tmp_path, monkeypatch, seconds, phases):
    seen: list[str] = []
    window = RecordingSettings(steps=3, warmup=4, stacks=False, shapes=False, memory=False)
    made = measurement(
        tmp_path,
        5,
        9,
        window,
        at_most_s=21.0,
        joined=True,
        progress=lambda phase, done, total: seen.extend([phase] * (done < total)),
    )
    slow_steps(monkeypatch, seconds)
    go_through(made)
    assert {phase: seen.count(phase) for phase in phases} == phases
    noted = {item["code"]: item["figures"] for item in made.record["notes"]}
    assert (noted.get("fewer_timed_steps", {}).get("slow_step_s") is not None) == (seconds > 3)
    assert ("fewer_profiled_steps" in noted) == (seconds > 2)


def test_without_a_limit_slow_steps_are_all_taken(tmp_path, monkeypatch):
    made = measurement(tmp_path, 5, 9, joined=True)
    slow_steps(monkeypatch, 30.0)
    assert go_through(made) == 14


def test_the_device_is_waited_for_between_the_phases_alone(tmp_path, monkeypatch):
    """On a GPU any wait within a phase would be a host sync in the measurement."""
    events: list[str] = []
    monkeypatch.setattr(Clock, "synchronize", lambda _: events.append("wait"))
    monkeypatch.setattr(Clock, "now", lambda _: events.append("mark") or 0)
    go_through(measurement(tmp_path, 1, 2, joined=True, between=events.append))
    assert events == ["mark", "mark", "wait", "warmup", "mark", "mark", "mark", *("wait", "wait"), "timed", "wait"]


def test_a_new_optimizer_among_the_timed_steps_begins_again(tmp_path):
    made = measurement(tmp_path)
    taken = go_through(made, lambda number: Step(1, new_leader=number == 4))
    assert taken == 4 + 5
    assert [row.phase for row in made.record["rows"]] == ["warmup"] + ["timed"] * 3


def test_a_program_that_ends_early_leaves_what_was_timed(tmp_path):
    made = measurement(tmp_path, 1, 9, RecordingSettings())
    phases = made.phases()
    next(phases)
    for _ in range(3):
        phases.send(Step(1))
    phases.close()
    assert [row.phase for row in made.record["rows"]] == ["timed", "timed"]
    assert "trace" not in made.record


def test_the_profiled_window_takes_one_of_the_long_steps_that_come_regularly(tmp_path, monkeypatch):
    """Every fifth step takes 600 ms, the others 20; one of each is watched for its lines."""
    now = [0]
    skipped = []
    monkeypatch.setattr(Clock, "now", lambda _: now[0])

    def make_step(number):
        now[0] += 600 if number % 5 == 0 else 20
        (torch.sin if number % 5 == 0 else torch.cos)(torch.ones(2))
        return plain_step(number)

    window = RecordingSettings(steps=2, warmup=1, stacks=False, shapes=False, memory=False)
    made = measurement(tmp_path, 4, 12, window, progress=lambda phase, *_: skipped.append(phase == "skipped"))
    assert go_through(made, make_step) == 4 + 12 + 1 + 3 + 5
    assert any(skipped)
    assert [row.step_ns for row in made.record["rows"] if row.phase == "profiled"] == [20, 600]
    ops = [(row.step, row.op) for row in made.record["op_lines"]]
    assert [(0, "aten::cos") in ops, (1, "aten::sin") in ops, {step for step, _ in ops}] == [True, True, {0, 1}]


def test_operators_of_a_program_s_warm_up_are_counted_but_those_of_its_first_steps(tmp_path):
    def make_step(number):
        return Step(1, losses=[torch.ones(2).add(1).sum() if number % 2 else torch.ones(2).sum()])

    made = measurement(tmp_path, 8, 3)
    go_through(made, make_step)
    few, more = sorted(set(made.record["operators"]))
    assert made.record["operators"] == [few, more, few, more, few]
    assert not torch.autograd._profiler_enabled()
    made = measurement(tmp_path, 8, 3)
    with torch.profiler.profile():  # the program's own
        go_through(made, make_step)
    assert made.record["operators"] == []


@pytest.mark.parametrize("graphs", [0, 1, 2])
def test_compiling_while_steps_are_timed_is_noted(tmp_path, monkeypatch, graphs):
    made_so_far = iter([3, 3 + graphs])
    monkeypatch.setattr(measure, "compiled_graphs", lambda: next(made_so_far))
    made = measurement(tmp_path)
    go_through(made)
    noted = [{"code": "recompiled", "figures": {"graphs": graphs}}] if graphs else []
    assert made.record["notes"] == noted
