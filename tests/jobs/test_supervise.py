"""The supervisor: every ending gets a status, and no child outlives it."""

import errno
import json
import os
import signal
import subprocess
import sys

import pytest
from filelock import FileLock
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from figures import figures_in
from processes import gone, wait_for
from steptrace import machine
from steptrace.jobs.devices import take_devices
from steptrace.jobs.supervise import Job, supervise
from steptrace.jobs.variant import launcher
from steptrace.lab import torchrun
from steptrace.run_folder import CHECK_RESULTS, read_status

# The child's death signal is set between fork and exec. A supervisor has one thread, pytest's process may have more.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

MODULE = [sys.executable, "-m", "steptrace.jobs.supervise"]


@pytest.fixture(autouse=True)
def locks(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTRACE_FOLDER", str(tmp_path / "locks"))
    return tmp_path / "locks"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "run0"


def supervised(out, code, *options):
    """Supervise `python -c code` in a process of its own; return the status it wrote."""
    command = [*MODULE, "--out", str(out), *options, "--", sys.executable, "-c", code]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    return read_status(out)


def test_the_status_of_a_run_that_ended_well(out):
    out.mkdir()
    (out / "steps.parquet").write_text("of an earlier run")
    code = f"import pathlib; print('timed 1/2'); print('other'); pathlib.Path({str(out)!r}, 'run.json').touch()"
    status = supervised(out, code)
    assert (status.status, status.exit_code, status.signal, status.error) == ("ok", 0, None, None)
    assert status.log_tail == ("timed 1/2", "other")
    assert not (out / "steps.parquet").exists()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise ValueError('the loss is not a number')", ("failed", 1, None, "ValueError: the loss is not a number")),
        ("import sys; sys.exit('error: no such file')", ("failed", 1, None, "no such file")),
        ("import os; os.kill(os.getpid(), 9)", ("killed", None, 9, "ended with SIGKILL (out of host memory?)")),
        ("import os; os.kill(os.getpid(), 15)", ("killed", None, 15, "ended with SIGTERM")),
        ("import os; os.abort()", ("failed", None, 6, "ended with SIGABRT")),
        ("raise MemoryError()", ("out of memory", 1, None, "MemoryError")),
        (
            "print('CUDA out of ' + 'memory.'); raise RuntimeError('no')",
            ("out of memory", 1, None, "CUDA out of memory."),
        ),
        ("pass", ("failed", 0, None, "exit code 0, but it has not written run.json")),
    ],
)
def test_the_status_of_runs_that_failed_were_killed_or_left_no_result(out, code, expected):
    status = supervised(out, code)
    assert (status.status, status.exit_code, status.signal, status.error) == expected


@pytest.mark.parametrize(
    ("printed", "starts_program", "expected"),
    [
        ("ValueError: no data", True, "train.py: no step was followed: ValueError: no data"),
        ("ValueError: no data", False, "train.py: no step was followed"),
        ("step 1: loss 2.3", True, "train.py: no step was followed"),
    ],
)
def test_a_check_of_a_program_that_fails_has_the_error_of_the_program(tmp_path, printed, starts_program, expected):
    code = f"print({printed!r}); raise SteptraceError('no step was followed', where='train.py', next_step='look')"
    lines = ["from steptrace.errors import SteptraceError, exit_with", "def main():", f"    {code}", "exit_with(main)"]
    command = [sys.executable, "-c", "\n".join(lines)]
    job = Job(tmp_path / "prediction", command, result=CHECK_RESULTS["prediction"], starts_program=starts_program)
    ((_, status),) = supervise([job])
    assert (status.status, status.error) == ("failed", expected)


def test_a_prediction_that_fails_leaves_no_earlier_one_to_be_read(tmp_path):
    (tmp_path / "prediction.json").write_text("of an earlier one")
    job = Job(tmp_path / "prediction", [sys.executable, "-c", "pass"], result=CHECK_RESULTS["prediction"])
    ((_, status),) = supervise([job])
    assert status.status == "failed"
    assert "prediction.json" in str(status.error)


@pytest.mark.usefixtures("forked_programs")  # torchrun imports PyTorch
@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("os.kill(os.getpid(), 9)", "rank 1 ended with SIGKILL (out of host memory?)"),
        ("record(lambda: 1 / 0)()", "ZeroDivisionError: division by zero"),
        ("os._exit(3)", "rank 1 ended with exit code 3"),
        ("sys.exit('error: no such file')", "no such file"),
    ],
)
def test_the_error_of_ranks_is_that_of_the_first_to_end(out, tmp_path, end, expected):
    program = tmp_path / "train.py"
    imports = "import os, sys, time\nfrom torch.distributed.elastic.multiprocessing.errors import record\n"
    program.write_text(f"{imports}if os.environ['RANK'] == '1':\n    {end}\ntime.sleep(60)\n")
    command = [sys.executable, *launcher(2), str(program)]
    subprocess.run([*MODULE, "--out", str(out), "--", *command], check=True, timeout=1500)
    status = read_status(out)
    assert (status.status, status.error) == ("failed", expected)


def test_a_killed_rank_is_named_before_one_that_lost_its_connection(monkeypatch, capsys):
    def run(_):
        lost, killed = (ProcessFailure(rank, 100 + rank, code, "") for rank, code in ((0, 1), (1, -9)))
        raise ChildFailedError("train.py", {0: lost, 1: killed})

    monkeypatch.setattr(torchrun, "run", run)
    assert torchrun.main(["train.py"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ")
    assert figures_in(last) == [1]  # the rank
    assert "SIGKILL" in last


def test_a_command_that_does_not_exist(out):
    subprocess.run([*MODULE, "--out", str(out), "--", "/no/such/program"], check=True)
    status = read_status(out)
    assert status.status == "failed"
    assert status.error.startswith("/no/such/program ")
    assert os.strerror(errno.ENOENT) in status.error


def test_a_run_that_takes_too_long_is_stopped_with_all_that_it_started_and_keeps_its_stack(out, tmp_path):
    program = tmp_path / "train.py"
    left = tmp_path / "left.txt"
    program.write_text(
        "import faulthandler, signal, subprocess, time\n"
        "from pathlib import Path\n"
        "faulthandler.register(signal.SIGTERM, file=2, chain=True)\n"
        "child = subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
        f"Path({str(left)!r}).write_text(str(child.pid))\n"
        "time.sleep(300)\n"
    )
    command = [*MODULE, "--out", str(out), "--timeout", "4", "--", sys.executable, str(program)]
    subprocess.run(command, check=True, timeout=1500)
    status = read_status(out)
    assert status.status == "failed"
    assert "timeout_minutes" in status.error
    assert status.log_tail[-1] == f'  File "{program}", line 6 in <module>'
    assert gone(int(left.read_text()))


@pytest.fixture
def running(tmp_path, out):
    """A supervisor at work below a process of its own: pids of parent, supervisor, child and the child's child."""
    program = tmp_path / "train.py"
    program.write_text(
        "import os, subprocess, time\n"
        "from pathlib import Path\n"
        "child = subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
        f"Path({str(tmp_path / 'pids.new')!r}).write_text(f'{{os.getppid()}} {{os.getpid()}} {{child.pid}}')\n"
        f"Path({str(tmp_path / 'pids.new')!r}).rename({str(tmp_path / 'pids')!r})\n"
        "time.sleep(300)\n"
    )
    command = [*MODULE, "--out", str(out), "--", sys.executable, str(program)]
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; sys.exit(subprocess.run({command!r}).returncode)"]
    )
    wait_for((tmp_path / "pids").exists)
    supervisor, child, below = map(int, (tmp_path / "pids").read_text().split())
    yield {"parent": parent.pid, "supervisor": supervisor, "child": child, "below": below}
    for pid in (parent.pid, supervisor, child, below):
        if not gone(pid):
            os.kill(pid, signal.SIGKILL)
    parent.wait()


@pytest.mark.parametrize(
    ("killed", "number"),
    [("parent", signal.SIGKILL), ("supervisor", signal.SIGTERM), ("supervisor", signal.SIGINT)],
)
def test_a_supervisor_that_is_terminated_or_has_no_parent_leaves_neither_process_nor_status(
    running, out, killed, number
):
    os.kill(running[killed], number)
    wait_for(lambda: gone(running["supervisor"]) and gone(running["child"]) and gone(running["below"]))
    assert not (out / "status.json").exists()


def test_a_killed_supervisor_takes_the_training_along(running, out):
    os.kill(running["supervisor"], signal.SIGKILL)
    wait_for(lambda: gone(running["child"]))
    assert not (out / "status.json").exists()


def test_a_killed_training_has_a_status_and_leaves_nothing(running, out):
    os.kill(running["child"], signal.SIGKILL)
    wait_for((out / "status.json").exists)
    assert read_status(out).status == "killed"
    assert gone(running["below"])


def test_jobs_run_some_at_once_and_one_that_fails_stops_no_other(tmp_path):
    code = "import sys, time; time.sleep(0.2); sys.exit({})"
    jobs = [Job(tmp_path / str(n), [sys.executable, "-c", code.format(n)]) for n in (0, 1, 2)]
    program = f"from steptrace.jobs.supervise import *\nfrom pathlib import *\nlist(supervise({jobs!r}, at_once=2))"
    subprocess.run([sys.executable, "-c", program.replace("PosixPath", "Path")], check=True, timeout=1500)
    assert [read_status(tmp_path / str(n)).exit_code for n in (0, 1, 2)] == [0, 1, 2]


def test_a_device_belongs_to_one_child_at_a_time(locks, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    first, second = take_devices(1), take_devices(1)
    assert first is not None
    assert second is not None
    assert [lease.environment["CUDA_VISIBLE_DEVICES"] for lease in (first, second)] == ["3", "5"]
    assert take_devices(1) is None
    first.locks.close()
    assert take_devices(2) is None  # all of them, or none
    second.locks.close()
    both = take_devices(2)
    assert both is not None
    assert both.environment["CUDA_VISIBLE_DEVICES"] == "3,5"
    both.locks.close()
    with FileLock(locks / "cpu.lock"):
        assert take_devices(0, cpu=True) is None
        assert take_devices(0) is not None


@pytest.fixture
def uuids(monkeypatch):
    """A function that sets the UUIDs of the GPUs in this machine, as nvidia-smi counts them."""
    return lambda *names: monkeypatch.setattr(machine, "_uuids", lambda: list(names))


def test_two_gpus_that_are_both_called_0_do_not_exclude_each_other(uuids, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    uuids("GPU-aaaa1111")
    with take_devices(1).locks:
        uuids("GPU-bbbb2222")  # as in another container
        other = take_devices(1)
        assert other is not None
        other.locks.close()


@pytest.mark.parametrize("name", ["GPU-bbbb2222", "GPU-bbb", "1"])
def test_one_gpu_is_the_same_by_number_and_by_uuid(uuids, monkeypatch, name):
    uuids("GPU-aaaa1111", "GPU-bbbb2222")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    first = take_devices(1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", name)
    assert take_devices(1) is None
    first.locks.close()
    again = take_devices(1)
    assert again.environment["CUDA_VISIBLE_DEVICES"] == name  # as the user has it
    again.locks.close()


def test_instances_of_one_gpu_have_locks_of_their_own(uuids, monkeypatch):
    uuids("GPU-aaaa1111")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-GPU-aaaa1111/1/0,MIG-GPU-aaaa1111/2/0")
    first, second = take_devices(1), take_devices(1)
    assert first is not None
    assert second is not None
    assert take_devices(1) is None
    first.locks.close()
    second.locks.close()


def test_a_long_wait_for_a_device_is_mentioned(out, locks):
    code = f"import pathlib; pathlib.Path({str(out)!r}, 'run.json').touch()"
    locks.mkdir(mode=0o700)
    with FileLock(locks / "cpu.lock"):
        command = [*MODULE, "--out", str(out), "--cpu", "--", sys.executable, "-c", code]
        waiting = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert f"{out} has waited" in waiting.stderr.readline()
        assert not out.exists()
    waiting.communicate(timeout=1500)
    assert read_status(out).status == "ok"


def test_a_training_for_more_gpus_than_there_are_fails_before_it_begins(out, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    status = supervised(out, "open('began', 'w')", "--gpus", "2")
    assert figures_in(status.error) == [2, 1]  # needed, available
    assert "scale=cpu" in status.error
    assert json.loads((out / "status.json").read_text())["exit_code"] is None


@pytest.mark.parametrize("prepared", ["failed", "ok"])
def test_a_failure_names_what_it_needs_and_has_failed(tmp_path, prepared):
    needed = tmp_path / "prepared" / "operators"
    code = {"ok": f"open({str(needed / 'made.so')!r}, 'w')", "failed": "raise ValueError('no compiler')"}[prepared]
    list(supervise([Job(needed, [sys.executable, "-c", code], result="made.so")]))
    assert read_status(needed).status == prepared
    job = Job(tmp_path / "run0", [sys.executable, "-c", "raise KeyError('operators')"], needs=[str(needed)])
    ((_, status),) = supervise([job])
    assert status.status == "failed"
    assert "KeyError" in status.error
    assert ("no compiler" in status.error) is (prepared == "failed")
