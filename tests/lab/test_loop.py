import itertools
import math
from contextlib import contextmanager, nullcontext

import pytest
import torch

from steptrace.engine.step_recorders import OpLineRecorder
from steptrace.lab.loop import LossReader, train_step
from steptrace.lab.setup import training


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
        losses = [train_step(parts)[0].item() for _ in range(3)]
        assert seen == 3 * [inside]
        assert all(map(math.isfinite, losses))
        assert not torch.equal(weight, parts.model.first.weight)
        assert parts.model.first.weight.dtype == torch.float32


def test_the_loss_is_read_in_every_nth_step_and_labelled():
    reader = LossReader(every=3)
    labels = []
    read = []

    @contextmanager
    def section(label):
        labels.append(label)
        yield

    for step in range(7):
        reader.after_step(torch.tensor(float(step)), section)
        read.append(reader.last)
    assert read == [None, None, 2.0, 2.0, 2.0, 5.0, 5.0]
    assert labels == 2 * ["read loss"]


def test_a_loss_is_never_read_unless_asked_for():
    reader = LossReader()
    for _ in range(5):
        reader.after_step(torch.tensor(1.0), lambda _: nullcontext())
    assert reader.last is None
