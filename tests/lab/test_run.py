import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from omegaconf import OmegaConf

from steptrace.cli import main as cli
from steptrace.documents.run import OpLine
from steptrace.documents.table import validate
from steptrace.run_folder import read_run, read_steps
from variant_runs import log_of, measure

TIMED = {"run.json", "steps.parquet", "memory.json"}
FILES = TIMED | {"trace.json.gz", "capture.json", "op_lines.parquet", "sources.json"}


def losses(out):
    return read_steps(out)["loss"].tolist()


def files(out):
    """The names of the files that a run leaves, besides its log, its status and its error."""
    return {path.name for path in out.iterdir()} - {"train.log", "status.json", "error.json"}


def test_a_run_leaves_records_that_validate(trained, tmp_path):
    out = trained(to="study/variant/run1", repeat=1)
    assert files(out) == FILES
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
    done = "warm-up 2/2, timed 4/4, under the profiler 3/3, watched 1/1"
    assert log_of(out).splitlines()[-1] == done


def test_repeats_beyond_those_that_explain_only_take_step_times(trained):
    changes = {"profile.repeats": 1, "scale.section_steps": 2}
    explains, times = (trained(changes, to=str(repeat), repeat=repeat) for repeat in (0, 1))
    assert files(explains) == FILES | {"sections.parquet"}
    assert files(times) == TIMED
    assert read_run(times).traces == ()
    assert read_steps(times)["phase"].tolist() == 2 * ["warmup"] + 4 * ["timed"]


def test_a_repeat_s_seed_decides_its_losses(trained, tmp_path, monkeypatch):
    first = trained(to="first")
    other = trained(to="other", repeat=1)
    monkeypatch.chdir(tmp_path)
    assert measure(Path("config.yaml"), Path("from/here")).status == "ok"
    assert files(Path("from/here")) == FILES
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
    status = measure(config, out)
    assert (status.status, status.exit_code, status.error) == ("failed", 1, "ValueError: logits looked wrong")
    assert "Traceback" in log_of(out)
    assert "my_failing_loss.py" in log_of(out)
    assert not (out / "run.json").exists()


#: A user's module; what it patches is imported by then.
FAILS_AT_ITS_END = """
import steptrace.lab.setup
from steptrace.workloads.masked_losses import IgnoreIndexLoss

real = steptrace.lab.setup.endless


def endless(loader):
    try:
        yield from real(loader)
    finally:
        raise RuntimeError("the loader's workers could not be ended")


steptrace.lab.setup.endless = endless


class Loss(IgnoreIndexLoss):
    pass
"""


@pytest.mark.usefixtures("forked_programs")
def test_what_fails_at_the_end_leaves_no_record(write_config, tmp_path):
    """A folder with run.json is complete: what a training closes at its end has been closed by then."""
    (tmp_path / "fails_at_its_end.py").write_text(FAILS_AT_ITS_END)
    changes = {"loss": {"_target_": "fails_at_its_end.Loss"}, "python_path": [str(tmp_path)]}
    status = measure(write_config(changes), tmp_path / "run")
    error = "RuntimeError: the loader's workers could not be ended"
    assert (status.status, status.exit_code, status.error) == ("failed", 1, error)
    assert "watched 1/1" in log_of(tmp_path / "run")
    assert files(tmp_path / "run") == set()


#: Raises in the pass that takes sections, and in a step under the profiler.
RAISES = """
import torch
from steptrace.workloads.masked_losses import IgnoreIndexLoss


class Loss(IgnoreIndexLoss):
    calls = 0

    def forward(self, output, target):
        self.calls += 1
        if self.calls == {call}:
            raise ValueError("call {call}")
        return super().forward(output, target)
"""


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize("call", [2, 4, 7, 9])  # warm-up, timed, the sections' pass, the profiled window
def test_an_error_in_any_phase_is_the_program_s(write_config, tmp_path, call):
    (tmp_path / "raising.py").write_text(RAISES.format(call=call))
    changes = {"loss": {"_target_": "raising.Loss"}, "python_path": [str(tmp_path)], "scale.section_steps": 1}
    status = measure(write_config(changes), tmp_path / "run")
    assert (status.status, status.exit_code, status.error) == ("failed", 1, f"ValueError: call {call}")
    assert files(tmp_path / "run") == set()


@pytest.mark.usefixtures("forked_programs")
def test_an_error_in_a_watched_step_costs_its_lines_alone(write_config, tmp_path):
    """Not everything works while a step is watched, and a run's timings do not depend on it."""
    (tmp_path / "raising.py").write_text(RAISES.format(call=11))  # 2 + 4 + 1 for memory + 3 under the profiler
    changes = {"loss": {"_target_": "raising.Loss"}, "python_path": [str(tmp_path)]}
    assert measure(write_config(changes), tmp_path / "run").status == "ok"
    (note,) = read_run(tmp_path / "run").notes
    assert (note.code, note.figures) == ("lines_incomplete", {"error": "ValueError: call 11"})


def test_a_config_that_cannot_be_read_is_the_run_s_error(tmp_path):
    status = measure(tmp_path / "missing.yaml", tmp_path / "run0")
    assert (status.status, status.exit_code) == ("failed", None)
    assert "missing.yaml" in status.error


@pytest.mark.usefixtures("forked_programs")
def test_unmeasured_it_trains_until_it_is_stopped(write_config):
    program = [sys.executable, "-m", "steptrace.lab", str(write_config())]
    for wait_s in (5, 20, 80, 320):  # a loaded machine takes longer to begin
        with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as process:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=wait_s)
            process.terminate()
            where_it_was = process.communicate()[1]
        if "train_step" in where_it_was:
            return
    pytest.fail(f"it did not train: {where_it_was}")


@pytest.mark.usefixtures("forked_programs")
def test_as_anybody_s_program_it_is_measured_alike(trained, tmp_path):
    """`steptrace run` times the same steps with the same losses as the workflow."""
    own = trained(to="own")
    out = tmp_path / "out"
    options = ["--warmup", "2", "--steps", "4", "--profile", "0", "--no-predict", "--out", str(out)]
    program = [sys.executable, "-m", "steptrace.lab", str(tmp_path / "config.yaml")]
    assert cli(["run", *options, "--", *program]) == 0
    assert losses(out / "run0") == losses(own)[:6]


#: Ends the process with a message on its last line, once the launcher has something to say of the timed steps.
ENDS = """
import sys
from steptrace.workloads.masked_losses import IgnoreIndexLoss


class Loss(IgnoreIndexLoss):
    calls = 0

    def forward(self, output, target):
        self.calls += 1
        if self.calls == 3:
            sys.exit("the licence has expired")
        return super().forward(output, target)
"""


@pytest.mark.usefixtures("forked_programs")
def test_the_error_of_a_run_is_the_program_s_last_line_and_not_the_launcher_s(write_config, tmp_path):
    (tmp_path / "ending.py").write_text(ENDS)
    changes = {"loss": {"_target_": "ending.Loss"}, "python_path": [str(tmp_path)]}
    status = measure(write_config(changes), tmp_path / "run")
    assert "warm-up 2/2, timed 0/4" in log_of(tmp_path / "run").splitlines()  # most often after the program's end
    assert (status.status, status.exit_code, status.error) == ("failed", 1, "the licence has expired")
