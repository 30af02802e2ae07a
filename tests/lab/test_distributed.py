"""Several ranks for real: gloo on this machine's CPUs, started by torchrun under the supervisor."""

import gc
import json
import os
import subprocess
import sys
import weakref
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from documents import fill
from steptrace.analysis import summarize
from steptrace.documents.probe import MeasuredStep
from steptrace.engine.files import steps_table
from steptrace.errors import TrainError
from steptrace.jobs.variant import launcher
from steptrace.lab import main
from steptrace.lab.distributed import ranks_of, threads_of
from steptrace.lab.loop import train_step
from steptrace.lab.setup import build_loader, training
from steptrace.rank import ALONE, Rank
from steptrace.run_folder import read_communication, read_run, read_status, read_steps

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    pytest.mark.usefixtures("forked_programs"),
]

PROGRAM = Path(__file__).with_name("ranks_program.py")
#: Small in everything, but more than one bucket.
TWO_RANKS = {
    "distributed.world_size": 2,
    "distributed.bucket_cap_mb": 0.001,
    "data.batch_size": 1,
    "data.dataset.length": 8,
    "model.hidden": 8,
    "scale.warmup_steps": 1,
    "scale.timed_steps": 3,
    "scale.threads": 1,
    "profile.with_stack": False,
}


@pytest.fixture(autouse=True)
def locks(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTRACE_FOLDER", str(tmp_path / "locks"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def run_ranks(out, config):
    options = ["--out", str(out), "--cpu", "--timeout", "600", "--variant", str(config)]
    subprocess.run([sys.executable, "-m", "steptrace.jobs.supervise", *options], check=True)
    return read_status(out)


def test_the_model_is_gone_before_its_group_ends(write_config, monkeypatch):
    """Else the group's destructor runs with Python's lock, which can wait for ever (`process_group`)."""
    models = []
    alive = []

    @contextmanager
    def watched(*given):
        with training(*given) as parts:
            models.append(weakref.ref(parts.model))
            yield parts

    @contextmanager
    def group(*_):
        yield
        gc.collect()
        alive.extend(model() is not None for model in models)

    def train(parts, _config, _session):
        """Two steps of a measurement that is over then."""
        for _ in range(2):
            train_step(parts)

    monkeypatch.setattr(main, "training", watched)
    monkeypatch.setattr(main, "process_group", group)
    monkeypatch.setattr(main, "train_measured", train)
    monkeypatch.setattr(main.sessions, "current", object())
    assert main.main([str(write_config(TWO_RANKS | {"distributed.world_size": 1}))]) == 0
    assert alive == [False]


def test_two_ranks_leave_one_run_with_expected_and_measured_all_reduce(write_config, tmp_path):
    out = tmp_path / "run0"
    changes = {"scale.at_most_s": 1e-9, "scale.warmup_steps": 6, "scale.timed_steps": 9}
    status = run_ranks(out, write_config(TWO_RANKS | changes))
    assert status.status == "ok", status.log_tail
    run = read_run(out)
    # The ranks end a phase whose time is over at the same step.
    timed, profiled = run.notes
    assert (timed.code, timed.figures["steps"], timed.figures["planned"]) == ("fewer_timed_steps", 5, 9)
    assert (profiled.code, profiled.figures["steps"], profiled.figures["planned"]) == ("fewer_profiled_steps", 1, 2)
    assert run.world_size == 2
    assert run.traces == ("trace.json.gz", "trace.rank1.json.gz")
    assert read_steps(out)["phase"].value_counts().to_dict() == {"timed": 5, "warmup": 3, "profiled": 1}
    measured = read_communication(out)
    assert measured is not None
    assert measured.parameter_bytes == 4 * measured.parameters
    assert sum(measured.bucket_bytes) == measured.parameter_bytes
    assert len(measured.bucket_bytes) > 1
    assert measured.expected_ns == round(measured.parameter_bytes / measured.bus_bytes_per_s * 1e9)  # of two ranks

    # PyTorch 2.11 leaves the last collective of a window unfinished: without shapes, at times without a partner.
    cut_off = torch.__version__ < "2.12"
    summary, _ = summarize([out / name for name in run.traces])
    assert [trace.rank for trace in summary.traces] == [0, 1]
    for trace in summary.traces:
        assert trace.all_reduce.source == "host"
        steps = trace.quality.steps
        size = trace.all_reduce.bytes
        assert trace.all_reduce.count == steps * len(measured.bucket_bytes)
        assert size == steps * measured.parameter_bytes or (cut_off and size is None)
        # How much is hidden is chance: it may be all of it on a busy machine.
        assert 0 <= trace.all_reduce.exposed_ns <= trace.all_reduce.measured_ns
    together = summary.ranks.all_reduce
    assert together.expected_ns == measured.expected_ns
    assert together.measured_ns_per_step > 0
    matched = summary.ranks.collectives.matched_by["order"]
    assert 0 <= 2 * steps * len(measured.bucket_bytes) - matched <= (2 if cut_off else 0)


def test_a_rank_that_runs_out_of_memory_ends_the_run_and_is_named(write_config, tmp_path):
    (tmp_path / "greedy.py").write_text(
        "import os, torch\n"
        "class Greedy(torch.nn.Module):\n"
        "    calls = 0\n"
        "    def forward(self, output, target):\n"
        "        self.calls += 1\n"
        "        if self.calls > 2 and os.environ['RANK'] == '1':\n"
        "            raise torch.OutOfMemoryError('rank one tried to allocate 2.00 GiB')\n"
        "        return output.square().mean()\n"
    )
    config = write_config(TWO_RANKS | {"loss": {"_target_": "greedy.Greedy"}, "python_path": [str(tmp_path)]})
    status = run_ranks(tmp_path / "run0", config)
    assert status.status == "out of memory"
    assert status.error.removeprefix("torch.") == "OutOfMemoryError: rank one tried to allocate 2.00 GiB"
    assert "in forward" in (tmp_path / "run0" / "train.log").read_text()  # beyond its tail, at times
    assert not (tmp_path / "run0" / "run.json").exists()


#: A loss that is the mean over all values, so that the mean of two batches' losses is the loss of both together.
MEAN_LOSS = {"loss": {"_target_": "ranks_loss.MeanSquare"}, "python_path": [str(Path(__file__).parent)]}


_ANSWERS: dict[str, Any] = {}


@pytest.fixture
def answers(write_config, tmp_path):
    """What two ranks answer to every setting of `ranks_program.SETTINGS`; they are asked once."""
    if not _ANSWERS:
        config = write_config(TWO_RANKS | MEAN_LOSS | {"scale.threads": None})
        command = [sys.executable, *launcher(2), str(PROGRAM), str(config), str(tmp_path / "out")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1500)
        assert done.returncode == 0, done.stderr[-3000:]
        _ANSWERS.update(json.loads((tmp_path / "out").read_text()))
    return _ANSWERS


def test_every_rank_has_the_same_weights_whatever_the_settings(answers):
    assert {name: answer["same"] for name, answer in answers.items()} == dict.fromkeys(answers, True)
    assert answers["static"]["weights"] == pytest.approx(answers["plain"]["weights"], abs=1e-6)
    assert answers["synced"]["weights"] == pytest.approx(answers["accumulated"]["weights"], abs=1e-6)
    assert answers["accumulated static"]["weights"] == pytest.approx(answers["accumulated"]["weights"], abs=1e-6)
    assert answers["bf16"]["weights"] == pytest.approx(answers["plain"]["weights"], abs=1e-2)
    assert answers["bf16"]["weights"] != answers["plain"]["weights"]


def test_every_rank_gets_the_first_one_s_number(answers):
    assert answers["plain"]["agreements"] == [[5, 7], [5, 7]]


def test_no_sync_halves_the_all_reduces_of_two_batches(answers):
    buckets = len(answers["plain"]["buckets"])
    assert answers["plain"]["calls"] == buckets
    assert answers["accumulated"]["calls"] == buckets
    assert answers["accumulated static"]["calls"] == buckets
    assert answers["synced"]["calls"] == 2 * buckets


def test_cores_are_divided_among_the_ranks(answers):
    cores = len(os.sched_getaffinity(0))
    assert answers["plain"]["threads"] == [max(1, cores // 2)] * 2


def test_accumulated_batches_give_the_step_of_one_large_batch(make_config):
    whole = torch.randn(4, 3, 8, 8)
    results = []
    for accumulate, batches in ((1, [whole]), (2, [whole[:2], whole[2:]])):
        with training(make_config({"step.accumulate": accumulate}), 7) as parts:
            object.__setattr__(parts, "loss", lambda output, _: output.square().mean())
            object.__setattr__(parts, "batches", iter([(batch, None) for batch in batches]))
            loss, wait_ns = train_step(parts)
            assert wait_ns > 0
            results.append((loss.item(), [p.detach().clone() for p in parts.model.parameters()]))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-6)
    for one, other in zip(results[0][1], results[1][1], strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_ranks_share_an_order_of_samples_and_no_sample(make_config):
    config = make_config({"data.dataset.length": 8, "data.batch_size": 2})
    device = torch.device("cpu")
    loaders = [build_loader(config, device, 7, Rank(rank, 2)) for rank in (0, 1)]
    orders = [[int(i) for batch in loader.batch_sampler for i in batch] for loader in loaders]
    assert sorted(orders[0] + orders[1]) == list(range(8))
    assert orders[0] != sorted(orders[0]) or orders[1] != sorted(orders[1])
    again = build_loader(config, device, 7, Rank(0, 2))
    assert [int(i) for batch in again.batch_sampler for i in batch] == orders[0]


def test_a_start_without_torchrun_says_how(make_config, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(TrainError, match="needs 2 ranks, but 1 were started"):
        ranks_of(make_config(TWO_RANKS))


def test_threads_of_one_process_are_the_config_s(make_config):
    assert threads_of(make_config(), ALONE) is None
    assert threads_of(make_config({"scale.threads": 3}), Rank(0, 2)) == 3


def test_a_step_took_as_long_as_on_the_slowest_rank():
    def timed(step_ns: int, wait_ns: int, loss: float) -> MeasuredStep:
        step = {"phase": "timed", "batches": 1, "step_ns": step_ns, "wait_ns": wait_ns, "loss": loss}
        return fill(MeasuredStep, step)

    first = [timed(10, 1, 2.0), timed(20, 5, 4.0)]
    second = [timed(15, 2, 4.0), timed(12, 3, 2.0)]
    table = steps_table([first, second])
    assert table["step_ns"].tolist() == [15, 20]
    assert table["loader_wait_ns"].tolist() == [2, 5]
    assert table["loss"].tolist() == [3.0, 3.0]
    assert table["step"].tolist() == [0, 1]
