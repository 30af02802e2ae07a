"""A program that only starts the processes that train is ended soon after these; one that trains itself gets longer."""

import sys
import time
from pathlib import Path

import pytest

from steptrace.jobs.process import Process
from steptrace.launch.settings import LaunchSettings
from steptrace.processes import Children

#: Makes its events, or lets a child make them, and then works on for longer than the test waits.
PROGRAM = """\
import subprocess, sys, time
from pathlib import Path
from steptrace.launch.events import RecordWritten, Started, Stepped, append

out, who = Path(sys.argv[1]), sys.argv[2]
if who == "starter":
    subprocess.run([sys.executable, __file__, str(out), "child"], check=True)
else:
    for event in (Started(), Stepped(), RecordWritten(0, 1, "complete")):
        append(out, event)
if who != "child":
    time.sleep(120)
"""


@pytest.mark.parametrize(("who", "grace"), [("starter", 0.2), ("trainer", 3.0)])
def test_how_long_a_program_may_go_on_after_its_measurement(
    who: str, grace: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steptrace.jobs.process._GRACE_OF_STARTER_S", 0.2)
    monkeypatch.setattr("steptrace.jobs.process._GRACE_S", 3.0)
    out = tmp_path / "probe"
    out.mkdir()
    (tmp_path / "train.py").write_text(PROGRAM)
    settings = LaunchSettings(out=str(out), mode="predict", warmup=2, steps=4)
    command = [sys.executable, str(tmp_path / "train.py"), str(out), who]
    with Children() as children:
        process = Process(children, command, {}, probe=settings)
        while not process.is_over():
            time.sleep(0.02)
        assert process.exit_code is None
        assert process.stopped is not None
        assert (process.stopped.reason, process.stopped.seconds) == ("measured", grace)
