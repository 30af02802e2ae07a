"""The line that says how far a program is."""

import pytest

from steptrace.launch import start
from steptrace.launch.settings import PROGRESS
from steptrace.launch.start import StatusLine


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
