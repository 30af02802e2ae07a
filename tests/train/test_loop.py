import itertools

import pytest
import torch

from steptrace.train import loop
from steptrace.train.clock import Clock
from steptrace.train.loop import run_steps, train_step
from steptrace.train.setup import training
from steptrace.train.step_recorders import OpLineRecorder


def test_one_step_trains_as_written_out_by_hand(make_config):
    config = make_config()
    with training(config, 7) as parts:
        inputs, targets = next(parts.batches)
        before = [p.detach().clone() for p in parts.model.parameters()]
        expected_loss = parts.loss(parts.model(inputs), targets)
        gradients = torch.autograd.grad(expected_loss, list(parts.model.parameters()))
        batches = iter([(inputs, targets)])
        object.__setattr__(parts, "batches", batches)
        loss, wait_ns = train_step(parts)
        assert loss.item() == expected_loss.item()
        assert not loss.requires_grad
        assert wait_ns > 0
        for parameter, old, gradient in zip(parts.model.parameters(), before, gradients, strict=True):
            assert torch.allclose(parameter, old - 0.1 * gradient)
            assert parameter.grad is None


def test_a_step_s_phases_are_labelled_in_order(make_config):
    with training(make_config(), 7) as parts, OpLineRecorder() as recorder:
        train_step(parts)
    phases = [phase for phase, _ in itertools.groupby(line.phase for line in recorder.lines) if phase is not None]
    # The optimizer's own labels stand inside ours or instead of them, depending on PyTorch's version.
    assert phases[:4] == ["data", "forward", "loss", "backward"]
    assert phases[4:] == ["optimizer"]


def test_a_block_gives_every_step_s_loss_wait_and_time(make_config):
    done = []
    with training(make_config(), 7) as parts:
        steps = run_steps(parts, 5, done.append)
    assert done == [1, 2, 3, 4, 5]
    assert len(steps) == 5
    assert all(0 < step.loader_wait_ns < step.step_ns for step in steps)
    assert len({step.loss for step in steps}) == 5


@pytest.mark.parametrize(("at_most_s", "at_least", "taken"), [(0.0, 3, 3), (0.0, 1, 1), (600.0, 1, 5), (None, 1, 5)])
def test_a_block_ends_when_its_time_is_over(make_config, at_most_s, at_least, taken):
    with training(make_config(), 7) as parts:
        assert len(run_steps(parts, 5, at_most_s=at_most_s, at_least=at_least)) == taken


def test_a_block_reads_nothing_from_the_device_before_its_end(make_config, monkeypatch):
    """On a GPU any such read would be a host synchronisation within the measurement."""
    reads_so_far = []
    with training(make_config(), 7) as parts, OpLineRecorder() as recorder:

        def reads():
            # The loader draws its shuffling from a tensor on the host, which concerns no device.
            return [x for x in recorder.lines if x.op == "aten::_local_scalar_dense" and x.phase != "data"]

        monkeypatch.setattr(loop, "synchronize", lambda _: recorder.lines.clear())
        run_steps(parts, 4, lambda _: reads_so_far.append(len(reads())))
        assert reads_so_far == [0, 0, 0, 0]
        assert len(reads()) == 4


def test_a_block_waits_for_the_device_once_before_and_once_after(make_config, monkeypatch):
    events = []
    monkeypatch.setattr(loop, "synchronize", lambda _: events.append("synchronize"))
    monkeypatch.setattr(Clock, "now", lambda _: events.append("mark") or 0)
    with training(make_config(), 7) as parts:
        run_steps(parts, 2)
    assert events == ["synchronize", "mark", "mark", "mark", "synchronize"]


def test_the_clock_gives_the_time_between_marks(monkeypatch):
    moments = iter([10, 15, 40])
    monkeypatch.setattr(loop.time, "perf_counter_ns", lambda: next(moments))
    clock = Clock(on_gpu=False)
    assert clock.intervals_ns([clock.now() for _ in range(3)]) == [5, 25]


@pytest.mark.parametrize(
    ("autocast", "grad_scaler", "inside"),
    [(None, False, torch.float32), ("bf16", False, torch.bfloat16), ("fp16", True, torch.float16)],
)
def test_forward_runs_in_the_config_s_precision_and_training_goes_on(make_config, autocast, grad_scaler, inside):
    config = make_config({"precision.autocast": autocast, "precision.grad_scaler": grad_scaler})
    with training(config, 7) as parts:
        seen = []
        parts.model.first.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
        weight = parts.model.first.weight.detach().clone()
        steps = run_steps(parts, 3)
        assert seen == 3 * [inside]
        assert all(torch.isfinite(torch.tensor(step.loss)) for step in steps)
        assert not torch.equal(weight, parts.model.first.weight)
        assert parts.model.first.weight.dtype == torch.float32
