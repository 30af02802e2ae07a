"""`steptrace run`: what a program leaves, what is said of it, and the exit codes."""

import gzip
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from documents import fill
from figures import figures_in
from processes import gone
from steptrace.cli import main
from steptrace.commands.measured import MeasuredProgram, on_gpu_command, spread, timing
from steptrace.documents.base import read
from steptrace.documents.diff import Diff
from steptrace.documents.probe import RankRecord
from steptrace.documents.run import RunRecord
from steptrace.documents.summary import Summary
from steptrace.launch.result import Launched
from steptrace.run_folder import read_memory, read_run, read_steps

pytestmark = pytest.mark.usefixtures("forked_programs")

FORMS = Path(__file__).with_name("forms.py")
#: A program that never asks for a GPU.
ON_THE_CPU = """
import torch
weight = torch.zeros(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(50):
    optimizer.zero_grad()
    weight.square().sum().backward()
    optimizer.step()
"""
#: A program that trains in a folder that is gone.
WITHOUT_A_FOLDER = f"""
import os, tempfile
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
{ON_THE_CPU}"""

#: It is signalled while the probe notes a timed step, and has a way to end of its own, or goes on.
SIGNALLED = f"""
import os, signal, sys, torch
from steptrace.launch.probe import Probe

class Preempted(Exception):
    pass

def preempted(number, frame):
    raise Preempted

def progress(probe, phase, done, total):
    if phase == "timed" and done == 3:
        Probe.progress = real
        os.kill(os.getpid(), signal.SIGUSR1)
        for _ in range(1000):
            pass
    return real(probe, phase, done, total)

signal.signal(signal.SIGUSR1, preempted)
real, Probe.progress = Probe.progress, progress
try:
    exec({ON_THE_CPU!r})
except Preempted:
    sys.exit(9)
"""

#: It trains 64 bytes beside 40 of buffers, and lets go of its gradients before a step ends.
HOLDS_MEMORY = """
import steptrace, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Odd(nn.Module):
    def parameters(self, recurse=True):
        raise RuntimeError("not yet")

odd, other = Odd(), nn.BatchNorm1d(1000)
model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(5):
    for (batch,) in DataLoader(TensorDataset(torch.ones(40, 3)), batch_size=2):
        model(batch).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        steptrace.step()
"""

#: It breaks steptrace's hooks at its sixth step.
BREAKS_STEPTRACE = """
import torch
import steptrace.launch.hooks
weight = torch.zeros(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(50):
    if step == 6:
        steptrace.launch.hooks._is_loss = None
    optimizer.zero_grad()
    weight.square().sum().backward()
    optimizer.step()
"""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


#: As short as a run can be.
SHORT = ("--steps", "2", "--warmup", "1", "--profile", "1")


def run(out: Path, *program: str, options: Sequence[str] = SHORT) -> int:
    """The exit code of `steptrace run` with a Python program."""
    return main(["run", *options, "--out", str(out), "--", sys.executable, *program])


def test_a_program_leaves_what_a_run_of_ours_leaves(out: Path, capfd) -> None:
    options = ("--steps", "5", "--warmup", "3", "--profile", "2", "--no-predict")
    argument = os.fsdecode(b"caf\xe9")  # Latin-1 in a UTF-8 environment
    assert run(out, str(FORMS), "loader", argument, options=options) == 0
    record = read_run(out / "run0")
    steps = read_steps(out / "run0")
    assert steps.groupby("phase", sort=False).size().to_dict() == {"warmup": 2, "timed": 5, "profiled": 2}
    assert (steps["step_ns"] > 0).all()
    assert steps["loss"].notna().all()
    assert (steps["loader_wait_ns"] > 0).all()
    assert (record.world_size, record.device, record.traces, record.warnings) == (1, "cpu", ("trace.json.gz",), ())
    assert record.config["data"] == {"batch_size": 16}
    assert record.config["program"]["command"] == [sys.executable, str(FORMS), "loader", "caf?"]
    (trace,) = json.loads((out / "summary.json").read_text())["traces"]
    timed = steps[steps["phase"] == "timed"]["step_ns"]
    assert trace["unprofiled_step_ns"] == pytest.approx(timed.median(), abs=1)
    # The share of waiting is that of the timed steps, not of the few that were profiled.
    waits = steps[steps["phase"] == "timed"]["loader_wait_ns"]
    assert trace["input"]["unprofiled_wait_ns"] == pytest.approx(waits.mean(), abs=1)
    assert trace["input"]["share"] == pytest.approx(waits.mean() / timed.mean(), rel=1e-6)
    lines = pd.read_parquet(out / "run0" / "op_lines.parquet")
    own = lines[lines["file"].fillna("").str.endswith("forms.py")]
    text = FORMS.read_text().splitlines()
    # Operators belong to the line that calls them, in the backward pass to the one whose gradient it is.
    assert {text[line - 1].strip() for line in own[own["op"] == "aten::mse_loss_backward"]["line"]} == {
        "loss = nn.functional.mse_loss(model(inputs), targets)"
    }
    assert set(lines["phase"].dropna()) >= {"data", "backward", "optimizer"}
    page = (out / "report.html").read_text()
    assert "Unprofiled step, median" in page
    assert f"<title>{sys.executable} {FORMS} loader &#39;caf?&#39; – steptrace</title>" in page
    assert not (out / "probe").exists()
    output = capfd.readouterr().out
    assert [1, 1, 16] in [figures_in(line)[:3] for line in output.splitlines()]  # backward passes, batches, samples
    assert "steptrace predict -- " in output


def test_a_program_that_has_removed_its_working_directory_is_measured_as_any(tmp_path: Path, out: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(WITHOUT_A_FOLDER)
    assert run(out, str(program), options=(*SHORT, "--no-predict")) == 0
    record = read_run(out / "run0")
    assert (record.traces, record.notes) == (("trace.json.gz",), ())


def test_a_program_s_buffers_and_its_gradients_at_the_end_of_a_backward_pass_are_counted(
    tmp_path: Path, out: Path
) -> None:
    program = tmp_path / "train.py"
    program.write_text(HOLDS_MEMORY)
    assert run(out, str(program), options=(*SHORT, "--no-predict")) == 0
    memory = read_memory(out / "run0")
    assert memory is not None
    moments = 2 * 64
    counts = 2 * 4
    assert memory.held == {"parameters": 64 + 40, "gradients": 0, "optimizer_state": moments + counts}
    assert (memory.gradient_bytes, memory.batch_size) == (64, 2)


def test_a_call_that_measures_nothing_keeps_an_earlier_one_s_results_and_one_that_does_replaces_them(
    tmp_path: Path, out: Path, capfd
) -> None:
    options = (*SHORT, "--no-predict")
    assert run(out, str(FORMS), "loader", options=options) == 0
    kept = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert run(out, str(tmp_path / "trian.py"), options=options) == 2
    assert main(["run", *options, "--out", str(out), "--", "true"]) == 2
    assert "PYTHONPATH" in capfd.readouterr().err
    assert all(path.read_bytes() == content for path, content in kept.items())
    (out / "run0" / "left.txt").touch()
    assert run(out, str(FORMS), "loader", options=(*options, "--profile", "0")) == 0
    assert (out / "run0").exists()
    assert (out / "run0" / "left.txt").exists()  # no call has written it
    assert not (out / "tables").exists()
    assert not (out / "probe").exists()


def test_a_program_is_followed_once_more_for_a_gpu_that_is_not_there(out: Path, capfd) -> None:
    assert run(out, str(FORMS), "loader", options=(*SHORT, "--gpu", "H100,L4", "--json")) == 0
    document = json.loads(capfd.readouterr().out)
    assert sum(kind["steps"] for kind in document["kinds"]) == 2
    predicted = document["predicted"]
    assert [row["gpu"] for row in predicted["estimate"]] == ["H100", "L4"]
    assert all(row["launches"] > 0 for row in predicted["estimate"])
    page = (out / "report.html").read_text()
    assert "Predicted for a GPU" in page
    assert "predicted, not measured" in page
    assert f"{predicted['total']:g} syncs per step" in page


def test_without_a_gpu_a_program_is_started_once_more_and_its_syncs_are_predicted(out: Path, capfd) -> None:
    assert run(out, str(FORMS), "loader") == 0
    shown = capfd.readouterr()
    command = shlex.join([sys.executable, str(FORMS), "loader"])
    assert command in shown.err
    (line,) = [line for line in shown.out.splitlines() if line.startswith(f"{command}: ")]
    assert figures_in(line.removeprefix(command))[0] == 3
    # `--steps` of this command are measured steps.
    assert "steptrace predict --steps 24" in shown.out
    assert re.search(r"forms\.py:\d+", shown.out)
    assert "estimated" not in shown.out
    page = (out / "report.html").read_text()
    assert "3 syncs per step" in page
    assert "steptrace run --gpu H100" in page
    assert main(["diff", str(out), str(out), "--out", str(out.parent / "diff")]) == 0
    both = read(out.parent / "diff" / "diff.json", Diff).measured
    assert both is not None
    assert both.a == both.b
    assert both.a is not None
    assert (both.a.predicted_syncs_per_step, both.ratio) == (3, 1)


def test_a_program_that_cannot_be_predicted_is_measured_all_the_same(tmp_path: Path, out: Path, capfd) -> None:
    (tmp_path / "train.py").write_text(ON_THE_CPU)
    assert run(out, str(tmp_path / "train.py")) == 0
    shown = capfd.readouterr()
    (warning,) = [line for line in shown.err.splitlines() if "warning" in line]
    assert "steptrace predict -- " in warning
    assert not (out / "prediction.json").exists()
    assert "steptrace predict -- " in shown.out  # beside the syncs, which are not measured
    assert "Predicted for a GPU" not in (out / "report.html").read_text()


def test_an_estimate_on_an_unknown_gpu_runs_nothing(out: Path, capfd) -> None:
    assert run(out, "missing.py", options=("--gpu", "H1000")) == 2
    assert "no GPU of the name 'H1000'" in capfd.readouterr().err
    assert not (out).exists()


def test_workers_that_are_forked_while_steps_are_profiled_leave_that_to_the_program(out: Path, capfd) -> None:
    options = ("--steps", "2", "--warmup", "2", "--profile", "3", "--no-predict")
    assert run(out, str(FORMS), "workers", options=options) == 0
    assert "capture " not in capfd.readouterr().err
    assert len(json.loads((out / "summary.json").read_text())["traces"][0]["steps"]) == 3


def test_the_spread_stays_within_what_was_measured() -> None:
    assert spread([4.0]) == (4.0, 4.0)
    low, high = spread([1.0, 2.0, 100.0])
    assert 1 <= low < high <= 100


def test_a_program_that_ends_early_is_reported_with_what_was_timed(out: Path, capfd) -> None:
    options = ("--warmup", "2", "--steps", "10")
    assert run(out, str(FORMS), "raises", options=options) == 1
    (ended,) = [note for note in read_run(out / "run0").notes if note.code == "ended_early"]
    assert (ended.figures["steps"], ended.figures["exit_code"]) == (3, 1)
    capfd.readouterr()
    assert run(out, str(FORMS), "loader", "0", options=options) == 2
    assert "steptrace.step()" in capfd.readouterr().err


def test_timed_steps_are_kept_where_an_optimizer_s_state_cannot_be_looked_at(tmp_path: Path, out: Path) -> None:
    state = """
class Closed:
    @property
    def __dict__(self):
        raise RuntimeError("not now")
"""
    program = ON_THE_CPU.replace("for _ in", "optimizer.state[weight]['closed'] = Closed()\nfor _ in")
    (tmp_path / "train.py").write_text(state + program)
    options = ("--warmup", "2", "--steps", "3", "--profile", "0", "--no-predict")
    assert run(out, str(tmp_path / "train.py"), options=options) == 0
    assert len(read_steps(out / "run0").query("phase == 'timed'")) == 3


def test_a_program_that_its_signal_handler_ends_within_code_of_ours_ends_so_and_its_timed_steps_are_kept(
    tmp_path: Path, out: Path
) -> None:
    (tmp_path / "train.py").write_text(SIGNALLED)
    assert run(out, str(tmp_path / "train.py"), options=("--warmup", "2", "--steps", "10", "--no-predict")) == 1
    ((code, figures),) = [(note.code, note.figures) for note in read_run(out / "run0").notes]
    assert (code, figures["steps"], figures["exit_code"]) == ("ended_early", 3, 9)


@pytest.mark.parametrize(("options", "exit_code"), [(["--warmup", "2"], 1), (["--warmup", "9"], 2), (["--capture"], 0)])
def test_a_fault_of_steptrace_in_a_program_is_reported_as_one(
    tmp_path: Path, out: Path, capfd, options: list[str], exit_code: int
) -> None:
    (tmp_path / "train.py").write_text(BREAKS_STEPTRACE)
    assert run(out, str(tmp_path / "train.py"), options=options) == exit_code
    errors = capfd.readouterr().err
    assert re.search(r"TypeError: 'NoneType' object is not callable, at .*train\.py:10, hooks\.py:\d+$", errors, re.M)


def test_a_program_that_could_be_captured_until_a_signal_ended_it_is_no_fault(tmp_path: Path, capfd) -> None:
    ended = "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n"
    (tmp_path / "train.py").write_text(ON_THE_CPU + ended)
    assert main(["run", "--capture", "--", sys.executable, str(tmp_path / "train.py")]) == 128 + signal.SIGTERM
    assert "warning" not in capfd.readouterr().err


def test_a_folder_of_somebody_else_is_not_emptied(tmp_path: Path, capfd) -> None:
    (tmp_path / "mine").write_text("")
    assert main(["run", "--out", str(tmp_path), "--", "true"]) == 2
    assert str(tmp_path) in capfd.readouterr().err
    assert (tmp_path / "mine").exists()


def test_a_program_of_anybody_s_can_be_captured_while_it_runs(tmp_path: Path) -> None:
    """No line of it is changed; its end, its output and its exit code are its own."""
    environment = {**os.environ, "STEPTRACE_FOLDER": str(tmp_path / "user")}
    steptrace = [sys.executable, "-m", "steptrace.cli"]
    program = [sys.executable, str(FORMS), "until_file_exists", str(tmp_path / "stop")]
    command = [*steptrace, "run", "--capture", "--out", str(tmp_path / "captures"), "--", *program]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as training:
        assert training.stdout is not None
        pid = training.stdout.readline().strip()
        asked = [*steptrace, "capture", pid, "--steps", "2", "--json"]
        done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False, timeout=1500)
        (tmp_path / "stop").touch()
        output = training.stdout.read()
    assert done.returncode == 0, done.stderr
    assert training.returncode == 3
    assert "its own finally" in output
    (folder,) = (tmp_path / "captures").iterdir()
    record = json.loads((folder / "capture.json").read_text())
    assert (record["state"], record["steps"]["count"]) == ("recorded", 2)
    assert record["unprofiled"]["median_ns"] > 0
    with gzip.open(folder / "trace.json.gz") as file:
        names = [event["name"] for event in json.load(file)["traceEvents"]]
    assert {names.count(label) for label in ("backward", "optimizer")} == {2}
    assert not list((tmp_path / "user" / "capture").iterdir())


def measured(*steps_ns: int, operators: Sequence[int] = ()) -> MeasuredProgram:
    row = {"phase": "timed", "wait_ns": 0, "batches": 0, "backwards": 1, "samples": 0}
    rows = [row | {"step_ns": ns} for ns in steps_ns]
    rank = {"optimizers": [("SGD", 12)], "rows": rows, "operators": list(operators)}
    launched = Launched(0, None, (fill(RankRecord, rank),), Path("probe"))
    return MeasuredProgram(launched, fill(RunRecord, {"world_size": 1}), Path("run0"))


def test_long_steps_are_printed_with_their_period_and_their_share_of_the_time() -> None:
    usual = 20_000_000
    long = 600_000_000
    (step, first, second, *_) = timing(measured(*([usual] * 4 + [long]) * 2))
    assert figures_in(step) == [20, 136, 5, 95, 20, 600, 10]  # median, mean, quantiles with their times, steps
    assert figures_in(first) == [8, 10, 20, 12]  # steps of all, median, share of the time
    assert figures_in(second) == [2, 10, 5, 600, 88]
    assert "--steps 24" in timing(measured(*[usual] * 5, long))[3]
    irregular = [usual, long, long, *[usual] * 7, long, *[usual] * 9]
    assert figures_in(timing(measured(*irregular))[3]) == []  # nothing would show more


def test_steps_that_are_too_uneven_for_a_verdict_are_not_called_alike() -> None:
    uneven = timing(measured(*[1_500_000, 300_000_000, 500_000_000, 789_000_000] * 5))
    assert figures_in(uneven[1]) == [20]
    assert figures_in(timing(measured(*[450_000_000, 460_000_000] * 10))[1]) == [20, 80]


def test_a_step_of_the_warm_up_that_was_seen_once_asks_for_a_longer_warm_up() -> None:
    lines = timing(measured(*[20_000_000] * 10, operators=[40, 40, 40, 1200, 40, 40]))
    (once,) = [line for line in lines if "--warmup 24" in line]
    assert figures_in(once) == [6, 1200, 40, 24]
    alike = timing(measured(*[20_000_000] * 10, operators=[40] * 6))
    assert not [line for line in alike if "--warmup" in line]
    assert [figures_in(line) for line in alike if "--steps 40" in line] == [[10, 40]]


def test_a_kind_of_steps_has_its_syncs_operators_and_times_on_one_line() -> None:
    one = measured(*[20_000_000] * 10, operators=[40, 1200] * 3)
    kinds = [{"kind": "usual", "syncs": 11}, {"kind": "other", "syncs": 786}]
    summary = fill(Summary, {"traces": [{"step_kinds": kinds}]})
    assert list(map(figures_in, timing(one, summary)[1:3])) == [[5, 10, 11, 40, 20, 50], [5, 10, 2, 786, 1200, 20, 50]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_command_alone_ends_the_program_and_keeps_what_was_timed(out: Path, number: int) -> None:
    options = ["--warmup", "2", "--steps", "500", "--out", str(out)]
    command = [sys.executable, "-m", "steptrace.cli", "run", *options, "--", sys.executable, str(FORMS), "slow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        while running.stdout.readline().strip() != "9":
            assert running.poll() is None
        running.send_signal(number)
        _, errors = running.communicate(timeout=1500)
    assert running.returncode == 1, errors
    assert (read_steps(out / "run0")["phase"] == "timed").sum() >= 5


def test_an_interrupt_gives_a_program_the_time_that_it_takes_and_a_second_one_ends_it(out: Path) -> None:
    program = (
        "import signal, time\n"
        "signal.signal(signal.SIGINT, lambda *_: print('saving', flush=True))\n"
        "print('began', flush=True)\n"
        "while True: time.sleep(1)"
    )
    command = [sys.executable, "-m", "steptrace.cli", "run", "--out", str(out), "--", sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        for line in (b"began\n", b"saving\n"):
            assert running.stdout.readline() == line
            assert running.poll() is None
            running.send_signal(signal.SIGINT)
        assert running.wait(timeout=1500) == 130
    assert not out.exists() or not list(out.iterdir())


@pytest.mark.parametrize("options", [["run", "--no-predict"], ["run", "--capture"], ["predict"]])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 2)])
def test_a_signal_before_the_first_step_gives_no_advice_on_steps(
    tmp_path: Path, options: list[str], number: int, code: int
) -> None:
    program = "import time\nprint('began', flush=True)\ntime.sleep(1000)"
    command = [sys.executable, "-m", "steptrace.cli", *options, "--", sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as running:
        while (running.stderr if options == ["predict"] else running.stdout).readline() != "began\n":
            assert running.poll() is None
        running.send_signal(number)
        _, errors = running.communicate(timeout=1500)
    if "--capture" not in options:  # which returns the program's own
        assert running.returncode == code
    assert "next:" not in errors
    assert ("interrupted" in errors) == (code == 130 and "--capture" not in options)


def test_a_program_that_catches_an_interrupt_is_not_started_once_more(out: Path, tmp_path: Path) -> None:
    """To predict its syncs it would be, and a second Ctrl-C would be needed."""
    (tmp_path / "program.py").write_text(
        "import time, torch\n"
        "weight = torch.nn.Parameter(torch.ones(3))\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "try:\n"
        "    while True:\n"
        "        weight.sum().backward()\n"
        "        optimizer.step()\n"
        "        print('step', flush=True)\n"
        "        time.sleep(0.05)\n"
        "except KeyboardInterrupt:\n"
        "    pass\n"
    )
    options = ["--warmup", "1", "--steps", "100000", "--out", str(out)]
    program = [sys.executable, str(tmp_path / "program.py")]
    command = [sys.executable, "-m", "steptrace.cli", "run", *options, "--", *program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for _ in range(10):
            assert running.stdout.readline() == "step\n"
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=1500)
    assert running.returncode == 1, errors
    assert (out / "run0" / "run.json").exists()
    assert not (out / "prediction.json").exists()


def test_a_program_that_takes_too_long_is_interrupted_and_ended(out: Path, tmp_path: Path, capfd) -> None:
    """It catches the interrupt, as one that saves a checkpoint does."""
    began = tmp_path / "began"
    code = f"""
import os, pathlib, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
pathlib.Path({str(began)!r}).write_text(str(os.getpid()))
while True: time.sleep(1)
"""
    assert run(out, "-c", code, options=("--timeout-minutes", "0.1")) == 2
    assert "time limit" in capfd.readouterr().err
    if began.exists():  # on a busy machine six seconds may not do to start Python
        assert gone(int(began.read_text()))


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "soon"])
def test_a_time_limit_that_is_none(minutes: str, capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["run", "--timeout-minutes", minutes, "--", "true"])
    assert f"invalid number '{minutes}'" in capsys.readouterr().err


def test_timed_steps_are_kept_whatever_ends_the_program(out: Path, capfd) -> None:
    assert run(out, str(FORMS), "killed", options=("--warmup", "2", "--steps", "500")) == 1
    assert (read_steps(out / "run0")["phase"] == "timed").sum() >= 5
    assert "with exit code -9" in capfd.readouterr().err


@pytest.mark.parametrize(("command", "problem"), [
    ("run --steps 3 {} python train.py --lr 0.1", "unrecognized arguments: --lr"),
    ("run {} python train.py --steps 3", "options after a program may be its own"),
    ("predict {} python train.py --device cpu", "unrecognized arguments: --device cpu"),
])  # fmt: skip
def test_a_program_without_the_two_dashes_before_it_is_an_error(command: str, problem: str, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(command.format("").split())
    assert stopped.value.code == 2
    shown = capsys.readouterr().err
    assert problem in shown
    assert f"put -- before the program: steptrace {command.format('--')}" in shown


def test_a_prediction_is_proposed_for_the_gpu() -> None:
    for given, followed in (
        ("train.py --device cpu --lr=1", "train.py --device cuda --lr=1"),
        ("train.py --device=cpu --name cpu2", "train.py --device=cuda --name cpu2"),
        ("ppo.py --no-cuda --seed 1", "ppo.py --seed 1"),
        ("train.py --cpu --cpus 2", "train.py --cpus 2"),
    ):
        assert on_gpu_command(given.split()) == followed.split()
