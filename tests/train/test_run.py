import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
import torch
from omegaconf import OmegaConf

from steptrace.cli import main as cli
from steptrace.documents.run import OpLine
from steptrace.documents.table import validate
from steptrace.record import read_run, read_steps
from steptrace.train import main as train_main
from steptrace.train.main import main

TIMED = {"run.json", "steps.parquet", "memory.json"}
FILES = TIMED | {"trace.json.gz", "capture.json", "op_lines.parquet", "sources.json"}


def losses(out):
    return read_steps(out)["loss"].tolist()


def test_a_run_leaves_records_that_validate(trained, tmp_path, capsys):
    out = trained(to="study/variant/run1", repeat=1)
    assert {path.name for path in out.iterdir()} == FILES
    record = read_run(out)
    assert (record.study, record.variant, record.repeat, record.seed) == ("tiny", "ignore_index", 1, 8)
    assert (record.device, record.clock, record.scale, record.world_size) == ("cpu", "monotonic", "cpu", 1)
    assert record.digest == "0" * 64
    assert record.traces == ("trace.json.gz",)
    assert record.config == OmegaConf.to_container(OmegaConf.load(tmp_path / "config.yaml"))
    assert (record.peak_allocated_bytes, record.peak_reserved_bytes, record.nvml) == (None, None, None)
    assert record.warnings == ()
    assert record.environment.torch == torch.__version__
    steps = read_steps(out)
    assert steps["step"].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert steps["phase"].tolist() == 2 * ["warmup"] + 4 * ["timed"] + 2 * ["profiled"]
    assert (steps["step_ns"] > steps["loader_wait_ns"]).all()
    assert steps["loss"].notna().all()
    lines = validate(pd.read_parquet(out / "op_lines.parquet"), OpLine)
    assert set(lines.file.dropna()) == set(json.loads((out / "sources.json").read_text())["files"])
    assert capsys.readouterr().out.splitlines() == ["warm-up 2/2", "timed 4/4", "under the profiler 3/3", "watched 1/1"]


def test_repeats_beyond_those_that_explain_only_take_step_times(trained):
    changes = {"profile.repeats": 1, "scale.section_steps": 2}
    explains, times = (trained(changes, to=str(repeat), repeat=repeat) for repeat in (0, 1))
    assert {path.name for path in explains.iterdir()} == FILES | {"sections.parquet"}
    assert {path.name for path in times.iterdir()} == TIMED
    assert read_run(times).traces == ()
    assert read_steps(times)["phase"].tolist() == 2 * ["warmup"] + 4 * ["timed"]


def test_a_repeat_s_seed_decides_its_losses(trained, tmp_path, monkeypatch):
    first, other = trained(to="first"), trained(to="other", repeat=1)
    monkeypatch.chdir(tmp_path)
    assert main(["config.yaml", "--out", "from/here"]) == 0
    assert {path.name for path in Path("from/here").iterdir()} == FILES
    assert losses(first) == losses(Path("from/here"))
    assert losses(first) != losses(other)


def test_a_loss_that_is_not_a_number_is_recorded_as_none(trained):
    assert read_steps(trained({"optimizer.lr": 1e30}))["loss"].isna().any()


@pytest.mark.usefixtures("forked_programs")
def test_a_loss_that_raises_ends_the_process_with_its_traceback(write_config, tmp_path):
    (tmp_path / "my_failing_loss.py").write_text(
        "def loss(output, target):\n    raise ValueError('logits looked wrong')\n"
    )
    loss = {"_target_": "hydra.utils.get_method", "path": "my_failing_loss.loss"}
    config = write_config({"loss": loss, "python_path": [str(tmp_path)]})
    out = tmp_path / "run0"
    command = [sys.executable, "-m", "steptrace.train", str(config), "--out", str(out)]
    done = subprocess.run([*command, "--repeat", "0"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "my_failing_loss.py" in done.stderr
    assert "ValueError: logits looked wrong" in done.stderr
    assert not (out / "run.json").exists()


def test_what_fails_at_the_end_leaves_no_record(trained, tmp_path, monkeypatch):
    """A folder with run.json is complete: what a training closes at its end has been closed by then."""
    real = train_main.training

    @contextmanager
    def fails_at_its_end(*given):
        with real(*given) as parts:
            yield parts
        raise RuntimeError("the loader's workers could not be ended")

    monkeypatch.setattr(train_main, "training", fails_at_its_end)
    with pytest.raises(RuntimeError, match="could not be ended"):
        trained()
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_config_that_cannot_be_read_is_a_message_and_exit_code_2(tmp_path, capsys):
    assert main([str(tmp_path / "missing.yaml"), "--out", str(tmp_path / "run0")]) == 2
    error = capsys.readouterr().err
    assert "missing.yaml" in error
    assert "Traceback" not in error


@pytest.mark.usefixtures("forked_programs")
def test_as_anybody_s_program_it_is_measured_alike(trained, tmp_path):
    """`steptrace run` finds the steps that the program tells of, and in each the loss that a run of its own has."""
    own, out = trained(to="own"), tmp_path / "out"
    options = ["--warmup", "2", "--steps", "4", "--profile", "0", "--no-predict", "--out", str(out)]
    program = [sys.executable, "-m", "steptrace.train", str(tmp_path / "config.yaml")]
    assert cli(["run", *options, "--", *program]) == 0
    assert losses(out / "run0") == losses(own)[1:6]  # of a program's first step nobody knows the beginning
