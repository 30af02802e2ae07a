"""PyTorch's warnings of syncs become counts; a warning that a CPU can raise stands in for the real one."""

import json
import warnings

import pytest
import torch

from steptrace.engine.step_recorders import OpLineRecorder, counted_warnings

#: PyTorch says this in C++, once for every call, of a result that does not have the size of its `out=`.
RESIZED = "An output with one or more elements was resized"


def resize(x):
    return torch.add(x, 1, out=torch.zeros(x.numel() + 1))


class Doubled(torch.autograd.Function):
    """Calls an operator that warns in its backward pass."""

    @staticmethod
    def forward(_ctx, x):
        return x * 2

    @staticmethod
    def backward(_ctx, grad):
        return resize(grad) * 2


def test_every_warning_of_a_step_counts_and_those_of_its_backward_pass():
    counts = []
    x = torch.ones(3, requires_grad=True)
    for repeats in (2, 1):
        with OpLineRecorder(), counted_warnings(counts, RESIZED):
            for _ in range(repeats):
                resize(torch.ones(3))
            torch.ones(3).exp_()
            Doubled.apply(Doubled.apply(x)).sum().backward()
    assert counts == [4, 3]


def test_filters_are_as_before_and_other_warnings_are_shown():
    before = list(warnings.filters)
    shown = warnings.showwarning
    with pytest.warns(UserWarning, match="something else"), counted_warnings([], "wait"):
        warnings.warn("something else", stacklevel=1)
    assert (warnings.filters, warnings.showwarning) == (before, shown)


def test_without_a_gpu_nothing_is_written(trained):
    assert not (trained() / "warned_syncs.json").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_masked_loss_is_warned_of(trained):
    out = trained({"device": "cuda", "loss._target_": "steptrace.workloads.masked_losses.BooleanMaskLoss"})
    assert torch.cuda.get_sync_debug_mode() == 0
    record = json.loads((out / "warned_syncs.json").read_text())
    assert record["per_step"] > 0
    assert len(set(record["by_step"])) == 1


def test_only_what_the_program_warns_of_is_shown():
    with warnings.catch_warnings(record=True) as shown, counted_warnings([]):
        warnings.warn("Synchronization debug mode is a prototype feature and does not yet detect all", stacklevel=1)
        warnings.warn("the program's own", stacklevel=1)
    assert [str(warning.message) for warning in shown] == ["the program's own"]
