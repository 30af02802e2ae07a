"""A job that is not supervised: it keeps its output, records what it has made, and ends with Snakemake."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from processes import gone, wait_for
from steptrace.processes import WORKFLOW
from steptrace.tasks import Task, read_task, write_tasks
from steptrace.workflow.made import state_of

TASK = Task(name="reports/index", key="k", inputs=("in.txt",), outputs=("out.txt", "folder"), attempt=3)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_tasks({TASK.name: TASK})
    Path("in.txt").write_text("input")
    return tmp_path


def job(script: str, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    Path("script.py").write_text(script)
    command = [sys.executable, "-m", "steptrace.workflow.job", TASK.name, "--log", "a.log"]
    command += ["--", "script.py", *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=1500
    )


MAKES = """
import pathlib, sys
print("said", sys.argv[1])
print("warned", file=sys.stderr)
pathlib.Path("out.txt").write_text("output")
pathlib.Path("folder").mkdir(exist_ok=True)
pathlib.Path("folder", "part.txt").write_text("part")
"""


def test_what_it_has_made_is_recorded_and_what_it_says_is_kept() -> None:
    done = job(MAKES, "é")
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == ("said é\n", "warned\n")
    assert Path("a.log").read_text() == "said é\nwarned\n"
    assert state_of(TASK).reason is None
    assert state_of(TASK).attempt == 3
    os.utime("out.txt", (1, 1))  # a copy
    assert state_of(TASK).reason is None
    for name, reason in (("in.txt", "changed"), ("out.txt", "damaged"), ("folder/part.txt", "damaged")):
        text = Path(name).read_text()
        for other in (text[::-1], "", text + "!"):
            Path(name).write_text(other)
            assert (state_of(TASK).reason, state_of(TASK).attempt) == (reason, 4), (name, other)
        Path(name).unlink()
        assert state_of(TASK).reason == reason
        Path(name).write_text(text)
        assert state_of(TASK).reason is None


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('a message')", 1, "a message"),
        ("import pathlib\nraise ValueError('no')", 1, "ValueError: no"),
        ("print('done')", 0, "done"),
    ],
)
def test_how_it_ends(script: str, code: int, said: str) -> None:
    done = job(script)
    assert done.returncode == code
    assert said in Path("a.log").read_text()
    assert state_of(TASK).reason in ("new", "damaged")  # it has not made its outputs


def test_a_task_that_is_not_planned_is_an_error() -> None:
    assert read_task(TASK.name) == TASK
    write_tasks({})
    assert job("print('done')").returncode != 0


def test_it_ends_with_the_process_that_started_it() -> None:
    """Also where that is killed while the job still starts."""
    sleeps = "import os, pathlib, time\npathlib.Path('pid').write_text(str(os.getpid()))\ntime.sleep(600)\n"
    Path("script.py").write_text(sleeps)
    starts = (
        "import os, subprocess, sys\n"
        f"os.environ[{WORKFLOW!r}] = str(os.getpid())\n"
        "job = [sys.executable, '-m', 'steptrace.workflow.job']\n"
        f"subprocess.run([*job, {TASK.name!r}, '--log', 'a.log', '--', 'script.py'])"
    )
    with subprocess.Popen([sys.executable, "-c", starts]) as snakemake:
        wait_for(lambda: Path("pid").exists() and Path("pid").read_text(), seconds=300)
        snakemake.kill()
    pid = int(Path("pid").read_text())
    wait_for(lambda: gone(pid), seconds=60)
    late = job("open('late', 'w')", **{WORKFLOW: "999999999"})
    assert late.returncode == 1
    assert not Path("late").exists()
