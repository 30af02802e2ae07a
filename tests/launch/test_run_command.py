"""`steptrace run`: what a program leaves, what is said of it, and the exit codes."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from steptrace.cli import main
from steptrace.commands.measured import on_gpu_command, spread
from steptrace.record import read_run, read_steps

pytestmark = pytest.mark.usefixtures("forked_programs")

FORMS = Path(__file__).with_name("forms.py")


def test_a_program_leaves_what_a_run_of_ours_leaves(tmp_path: Path, capfd) -> None:
    out = tmp_path / "out"
    options = ["--steps", "5", "--warmup", "3", "--profile", "2", "--out", str(out)]
    assert main(["run", *options, "--", sys.executable, str(FORMS), "loader"]) == 0
    record, steps = read_run(out / "run0"), read_steps(out / "run0")
    assert steps.groupby("phase", sort=False).size().to_dict() == {"warmup": 2, "timed": 5, "profiled": 2}
    assert (steps["step_ns"] > 0).all()
    assert steps["loss"].notna().all()
    assert (steps["loader_wait_ns"] > 0).all()
    assert (record.world_size, record.device, record.traces, record.warnings) == (1, "cpu", ("trace.json.gz",), ())
    assert record.config["data"] == {"batch_size": 16}
    assert record.config["program"]["command"] == [sys.executable, str(FORMS), "loader"]
    lines = pd.read_parquet(out / "run0" / "op_lines.parquet")
    own = lines[lines["file"].fillna("").str.endswith("forms.py")]
    text = FORMS.read_text().splitlines()
    # Operators belong to the line that calls them, in the backward pass to the one whose gradient it is.
    assert {text[line - 1].strip() for line in own[own["op"] == "aten::mse_loss_backward"]["line"]} == {
        "loss = nn.functional.mse_loss(model(inputs), targets)"
    }
    assert set(lines["phase"].dropna()) >= {"data", "backward", "optimizer"}
    assert (out / "report.html").is_file()
    assert (out / "summary.json").is_file()
    assert not (out / "probe").exists()
    said = capfd.readouterr().out
    assert "each step: 1 backward pass, 1 batch, 16 samples; optimizer steps seen in all: SGD 1" in said
    assert "waiting for data: " in said
    assert "to predict them: steptrace predict -- " in said
    assert "its final checkpoint, if any, was not written" in said


def test_a_program_is_followed_once_more_for_a_gpu_that_is_not_there(tmp_path: Path, capfd) -> None:
    out = tmp_path / "out"
    options = ["--steps", "2", "--warmup", "1", "--profile", "1", "--gpu", "H100,L4", "--json", "--out", str(out)]
    assert main(["run", *options, "--", sys.executable, str(FORMS), "loader"]) == 0
    predicted = json.loads(capfd.readouterr().out)["predicted"]
    assert [row["gpu"] for row in predicted["estimate"]] == ["H100", "L4"]
    assert all(row["launches"] > 0 for row in predicted["estimate"])
    page = (out / "report.html").read_text()
    assert "Predicted for a GPU" in page
    assert "predicted, not measured" in page
    assert f"{predicted['total']:g} syncs per step" in page


def test_an_estimate_on_an_unknown_gpu_runs_nothing(tmp_path: Path, capfd) -> None:
    assert main(["run", "--gpu", "H1000", "--out", str(tmp_path / "out"), "--", sys.executable, "missing.py"]) == 2
    assert "no GPU of the name 'H1000'" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def test_workers_that_are_forked_while_steps_are_profiled_leave_that_to_the_program(tmp_path: Path, capfd) -> None:
    out = tmp_path / "out"
    options = ["--steps", "2", "--warmup", "2", "--profile", "3", "--no-report", "--out", str(out)]
    assert main(["run", *options, "--", sys.executable, str(FORMS), "workers"]) == 0
    assert "capture " not in capfd.readouterr().err
    assert len(json.loads((out / "summary.json").read_text())["traces"][0]["steps"]) == 3


def test_the_spread_stays_within_what_was_measured() -> None:
    assert spread([4.0]) == (4.0, 4.0)
    low, high = spread([1.0, 2.0, 100.0])
    assert 1 <= low < high <= 100


def test_repeats_and_a_second_call_replace_what_was_there(tmp_path: Path, capfd) -> None:
    out = tmp_path / "out"
    options = ["--steps", "4", "--warmup", "2", "--profile", "0", "--repeats", "2", "--out", str(out)]
    assert main(["run", *options, "--", sys.executable, str(FORMS), "loader"]) == 0
    assert "medians of the runs: " in capfd.readouterr().out
    assert [read_run(out / f"run{k}").repeat for k in range(2)] == [0, 1]
    assert main(["run", "--out", str(out), "--", "true"]) == 2
    assert "the probe was never loaded" in capfd.readouterr().err
    assert not (out / "run0").exists()


def test_a_program_that_ends_early_is_told_with_what_was_timed(tmp_path: Path, capfd) -> None:
    out = tmp_path / "out"
    options = ["--warmup", "2", "--steps", "10", "--out", str(out), "--no-report"]
    assert main(["run", *options, "--", sys.executable, str(FORMS), "raises"]) == 1
    assert "the program ended after 3 timed steps, with exit code 1" in capfd.readouterr().err
    assert main(["run", *options, "--", sys.executable, str(FORMS), "loader", "0"]) == 2
    assert "no training step was seen" in capfd.readouterr().err


def test_a_folder_of_somebody_else_is_not_emptied(tmp_path: Path, capfd) -> None:
    (tmp_path / "mine").write_text("")
    assert main(["run", "--out", str(tmp_path), "--", "true"]) == 2
    assert "not from an earlier `steptrace run`" in capfd.readouterr().err
    assert (tmp_path / "mine").exists()


def test_without_a_command_it_says_how() -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["run"])
    assert stopped.value.code == 2


def test_a_program_of_anybody_s_can_be_captured_while_it_runs(tmp_path: Path) -> None:
    """No line of it is changed; its end, its output and its exit code are its own."""
    environment = {**os.environ, "STEPTRACE_CAPTURE_CONTROL": str(tmp_path / "control")}
    steptrace = [sys.executable, "-m", "steptrace.cli"]
    program = [sys.executable, str(FORMS), "until_told", str(tmp_path / "told")]
    command = [*steptrace, "run", "--capture", "--out", str(tmp_path / "captures"), "--", *program]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as training:
        assert training.stdout is not None
        pid = training.stdout.readline().strip()
        asked = [*steptrace, "capture", pid, "--steps", "2", "--wait", "--json"]
        done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False, timeout=120)
        (tmp_path / "told").touch()
        said = training.stdout.read()
    assert done.returncode == 0, done.stderr
    assert training.returncode == 3
    assert "its own finally" in said
    (folder,) = (tmp_path / "captures").iterdir()
    record = json.loads((folder / "capture.json").read_text())
    assert (record["state"], record["steps"]["count"]) == ("recorded", 2)
    assert record["unprofiled"]["median_ns"] > 0
    with gzip.open(folder / "trace.json.gz") as file:
        names = [event["name"] for event in json.load(file)["traceEvents"]]
    assert {names.count(label) for label in ("backward", "optimizer")} == {2}
    assert not list((tmp_path / "control").iterdir())


def test_the_page_tells_unprofiled_from_profiled_steps_of_any_command(tmp_path: Path, capfd) -> None:
    out = tmp_path / "out"
    options = ["--steps", "4", "--warmup", "2", "--profile", "2", "--out", str(out)]
    argument = os.fsdecode(b"caf\xe9")  # Latin-1 in a UTF-8 environment
    assert main(["run", *options, "--", sys.executable, str(FORMS), "loader", argument]) == 0
    assert read_run(out / "run0").config["program"]["command"][-1] == "caf?"
    timed = read_steps(out / "run0").query("phase == 'timed'")["step_ns"]
    (trace,) = json.loads((out / "summary.json").read_text())["traces"]
    assert trace["unprofiled_step_ns"] == pytest.approx(timed.median(), rel=0.01)
    page = (out / "report.html").read_text()
    assert "Unprofiled step, median" in page
    assert f"<title>{sys.executable} {FORMS} loader &#39;caf?&#39; – steptrace</title>" in page
    assert "  Of profiled steps (" in capfd.readouterr().out


def test_long_steps_that_come_regularly_are_told_with_their_share_and_one_is_profiled(tmp_path: Path, capfd) -> None:
    out = tmp_path / "out"
    options = ["--steps", "12", "--warmup", "4", "--profile", "2", "--no-report", "--out", str(out), "--json"]
    assert main(["run", *options, "--", sys.executable, str(FORMS), "rollouts"]) == 0
    document = json.loads(capfd.readouterr().out)
    usual, long = document["kinds"]
    assert (long["every"], long["of"]) == (5, usual["steps"] + long["steps"])
    assert long["typical"] >= 6e8
    assert long["share"] > 0.5
    (trace,) = json.loads((out / "summary.json").read_text())["traces"]
    steps_ns = [step["dur_ns"] for step in trace["steps"]]
    assert max(steps_ns) >= 6e8 > min(steps_ns)
    assert main(["run", *options[:-1], "--", sys.executable, str(FORMS), "rollouts"]) == 0
    shown = capfd.readouterr()
    assert re.search(r"\d of 12 steps \(one every 5\): median 6\d\d ms, \d+ % of the time", shown.out)
    assert " (median; mean " in shown.out
    last_status = [line for line in shown.err.splitlines() if line.startswith("steptrace: warm-up")][-1]
    assert "warm-up 4/4, timed 12/12, before the profiled steps " in last_status
    assert last_status.endswith("profiled 4/4, watched 1/1")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_command_alone_ends_the_program_and_keeps_what_was_timed(tmp_path: Path, number: int) -> None:
    out = tmp_path / "out"
    options = ["--warmup", "2", "--steps", "500", "--no-report", "--out", str(out)]
    command = [sys.executable, "-m", "steptrace.cli", "run", *options, "--", sys.executable, str(FORMS), "slow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        while running.stdout.readline().strip() != "9":
            assert running.poll() is None
        running.send_signal(number)
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 1, errors
    assert (read_steps(out / "run0")["phase"] == "timed").sum() >= 5
    assert "the program ended after" in errors


def test_a_program_without_the_two_dashes_before_it_is_told_so(capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["run", "--steps", "3", "python", "train.py", "--lr", "0.1"])
    assert stopped.value.code == 2
    shown = capsys.readouterr().err
    assert "unrecognized arguments: --lr" in shown
    assert "put -- before the program: steptrace run --steps 3 -- python train.py --lr 0.1" in shown


def test_a_prediction_is_proposed_for_the_gpu() -> None:
    assert on_gpu_command("python train.py --device cpu --lr=1") == "python train.py --device cuda --lr=1"
    assert on_gpu_command("python train.py --device=cpu --name cpu2") == "python train.py --device=cuda --name cpu2"
