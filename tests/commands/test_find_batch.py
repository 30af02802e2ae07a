"""The search for the largest batch: its steps on a made training, and once for real under a limit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from steptrace.cli import main
from steptrace.commands.find_batch import Search, Trial
from steptrace.compare.memory import fit_peaks
from steptrace.train import fork_client

pytestmark = pytest.mark.usefixtures("forked_programs")

STUDY = """
title: A tiny study
baseline: plain
overrides:
  - model=residual
  - model.blocks=2
  - data=random_masks
  - loss=ignore_index
  - data.num_workers=0
  - data.prefetch_factor=null
  - data.persistent_workers=false
  - data.dataset.image_size=64
  - data.batch_size=8
reference: [loss=masked_reference]
variants:
  plain: []
  again: [model.checkpointed=true]
"""


class Made(Search):
    """Trainings that take `fixed` bytes and `per_sample` for each sample, of which only the line is predicted."""

    def __init__(self, truth: int, samples: int, foretold_factor: float = 1.0) -> None:
        super().__init__(Path(), "cpu", None, within=0.02)
        self.samples, self.capacity_bytes = samples, 1000 * max(truth, 1)
        self.truth, self.factor = truth, foretold_factor

    def _try(self, sizes, *, measure=False):
        for size in [s for s in sizes if s <= self.samples] or [self.samples]:
            fits = size <= self.truth
            peak = round(1000 * size / self.factor) if fits and measure else None
            self.trials.append(Trial(size, fits, peak))
            if not fits:
                return


@given(st.integers(0, 300), st.integers(1, 400), st.integers(1, 64), st.sampled_from([0.5, 0.9, 1.0, 1.1, 3.0]))
@settings(max_examples=200, deadline=None)
@example(truth=65, samples=195, configured=1, factor=3.0)  # takes the most trials
def test_the_search_ends_at_the_largest_size_that_fits(truth, samples, configured, factor):
    search = Made(truth, samples, factor)
    search.measure(configured)
    search.verify()
    assert len(search.trials) <= 20
    assert search.fits <= truth
    if truth >= samples:
        assert search.fits == samples
    elif truth > 0:
        assert search.fails is not None
        assert search.fails - search.fits == 1 or search.fails - search.fits <= 0.02 * search.fits
    else:
        assert search.fits == 0
    sizes = [trial.batch_size for trial in search.trials]
    assert len(set(sizes)) == len(sizes)


def test_a_good_line_needs_two_more_trainings():
    search = Made(truth=123, samples=1000)
    search.measure(16)
    search.verify()
    assert search.predicted == 123
    assert [trial.batch_size for trial in search.trials] == [4, 8, 16, 123, 125]


def test_without_a_prediction_each_size_is_twice_the_last():
    search = Made(truth=900, samples=1000)
    search.measure(16)
    search.predicted = None
    search.verify()
    sizes = [trial.batch_size for trial in search.trials]
    assert sizes[:9] == [4, 8, 16, 32, 64, 128, 256, 512, 1000]
    assert 882 <= search.fits <= 900


def test_a_line_through_peaks():
    fit = fit_peaks({8: 1800, 16: 2600, 32: 4200})
    assert fit is not None
    assert (round(fit.fixed_bytes), round(fit.per_sample_bytes)) == (1000, 100)
    assert fit.residual == pytest.approx(0)
    assert fit.largest(5999) == 49
    assert fit.largest(10) == 0
    assert fit_peaks({8: 1800}) is None
    two = fit_peaks({8: 1800, 16: 2600})
    assert two is not None
    assert two.residual is None
    assert two.largest(2600) == 16


def test_peaks_that_are_not_linear_in_the_batch_size_give_no_prediction():
    bent = fit_peaks({8: 1000, 16: 4000, 32: 4100})
    assert bent is not None
    assert not bent.holds
    assert bent.largest(10_000) is None
    falling = fit_peaks({8: 1000, 16: 900})
    assert falling is not None
    assert falling.largest(10_000) is None


def test_a_study_of_a_command_is_refused(tmp_path, monkeypatch, capsys):
    study = tmp_path / "config" / "study" / "training.yaml"
    study.parent.mkdir(parents=True)
    study.write_text("title: T\nbaseline: a\nprogram: {command: [python, train.py]}\nvariants: {a: []}\n")
    monkeypatch.chdir(tmp_path)
    assert main(["find-batch", "training", "--scale", "cpu"]) == 2
    assert "training/a: a program decides its batch itself" in capsys.readouterr().err


def test_for_real_under_a_limit(tmp_path, monkeypatch):
    study = tmp_path / "config" / "study" / "tiny.yaml"
    study.parent.mkdir(parents=True)
    study.write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPTRACE_LOCKS", str(tmp_path / "locks"))
    command = ["find-batch", "tiny", "--scale", "cpu", "--limit-mb", "150", "--within", "30", "--json"]
    # As a process of its own: the server that its trials are forked from ends with it.
    done = subprocess.run([sys.executable, "-m", "steptrace.cli", *command], stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout)
    assert (found["variant"], found["capacity_bytes"], found["samples"]) == ("tiny/plain", 150 * 2**20, 1024)
    # A sample keeps the input and its label map, and the activations of two blocks of 16 channels, 64 x 64: 2.7 MiB,
    # and what the libraries take for their own copies of some.
    assert 2e6 < found["fit"]["per_sample_bytes"] < 7e6
    assert 8 <= found["largest_batch"] < found["smallest_failing_batch"] < 55
    assert found["smallest_failing_batch"] - found["largest_batch"] <= 0.3 * found["largest_batch"] + 1
    assert {trial["batch_size"] for trial in found["trials"][:3]} == {2, 4, 8}


def test_trials_are_forked_from_one_server(tmp_path, monkeypatch):
    """One that has imported PyTorch; a trial that runs out of memory is a process of its own all the same."""
    started = []

    def run(command, *, env, check):
        started.append((command[: command.index("--")], command[command.index("--") + 1 :], env))
        return subprocess.CompletedProcess(command, int(check))

    monkeypatch.setattr(subprocess, "run", run)
    search = Search(tmp_path / "config.yaml", "cpu", None, within=0.02)
    monkeypatch.setattr(search, "_read_trials", lambda *_: None)
    search._try([8])
    ((supervisor, trial, environment),) = started
    assert supervisor[supervisor.index("--server") + 1] == "trials"
    assert supervisor[supervisor.index("--parent") + 1] == str(os.getpid())
    assert environment[fork_client.VARIABLE] == "1"
    assert fork_client.is_program(trial)


def test_what_cannot_be_searched_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["find-batch", "memry"]) == 2
    assert "memory" in capsys.readouterr().err
    assert main(["find-batch", "memory", "batch_9", "--scale", "cpu"]) == 2
    assert "batch_8" in capsys.readouterr().err
