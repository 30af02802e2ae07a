"""A prediction leaves nothing behind, and notices when PyTorch's experimental backend API behaves otherwise."""

import importlib
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils import _foreach_utils

from steptrace.errors import PredictError
from steptrace.predict import backend, cuda_api, predict_syncs
from steptrace.predict.rule import KINDS
from steptrace.predict.rules import RULES


def state() -> dict[str, object]:
    record_function = torch.autograd.profiler.record_function
    optimizers = importlib.import_module("torch.optim.optimizer")
    return {
        "cuda": {name: getattr(torch.cuda, name, None) for name in cuda_api.CUDA},
        "accelerator": {name: getattr(torch.accelerator, name, None) for name in cuda_api.ACCELERATOR},
        "tensor": {name: value for name, value in vars(torch.Tensor).items() if name in ("pin_memory", "is_pinned")},
        "torch": [torch.Event, torch.Stream, torch.Generator, torch.compile, torch.set_default_device],
        "autocast": [torch.amp.autocast_mode.autocast.__init__, torch.is_autocast_enabled, torch.get_autocast_dtype],
        "labels": [record_function.__enter__, record_function.__exit__],
        "modes": (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()),
        "swap": torch.__future__.get_swap_module_params_on_conversion(),
        "lift": torch._C._only_lift_cpu_tensors(),
        "foreach": [list(_foreach_utils._foreach_supported_types), list(optimizers._foreach_supported_types)],
        "anomaly": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "autograd threads": torch._C._is_multithreading_enabled(),
        "defaults": (torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()),
        "available": (torch.cuda.is_available(), torch.cuda.device_count(), torch.accelerator.is_available()),
        "rng": torch.get_rng_state().tolist(),
    }


def raising() -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("step", [lambda: None, raising, lambda: torch.zeros(2, device="cuda").sum().item()])
def test_a_prediction_leaves_the_process_state_unchanged(step: Callable[[], object]) -> None:
    with predict_syncs():
        pass  # what a process's first prediction registers and imports stays
    before = state()
    try:
        with predict_syncs():
            assert torch.cuda.is_available()
            step()
    except ZeroDivisionError:
        assert step is raising
    assert state() == before


@pytest.mark.usefixtures("forked_programs")
def test_a_program_may_have_run_a_backward_pass_before() -> None:
    """In a process of its own: autograd starts its threads once, with the first backward pass of all."""
    program = """
import torch
from steptrace.predict import predict_syncs

torch.ones(2, requires_grad=True).sum().backward()
with predict_syncs() as syncs:
    x = torch.ones(2, device="cuda", requires_grad=True)
    x[x > 0].sum().backward()
print([(site.phase, site.count) for site in syncs.sites], x.grad.cpu().tolist())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[('forward', 1), ('backward', 1)] [1.0, 1.0]\n"), done.stderr


def test_the_device_is_gone_afterwards() -> None:
    if torch.cuda.is_available():
        pytest.skip("a machine with a GPU keeps its own device")
    with predict_syncs():
        pass
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(2, device="cuda")


def test_a_second_prediction_inside_the_first_is_refused_and_leaves_it_intact() -> None:
    with predict_syncs() as syncs:
        x = torch.ones(1, device="cuda")
        with pytest.raises(PredictError, match="already active"), predict_syncs():
            pass
        x.item()
    assert syncs.total == 1
    with predict_syncs() as again:
        torch.ones(1, device="cuda").item()
    assert again.total == 1


def test_another_owner_of_the_backend_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_get_privateuse1_backend_name", lambda: "npu")
    with pytest.raises(PredictError, match="taken by 'npu'"), predict_syncs():
        pass
    monkeypatch.undo()
    with predict_syncs():
        assert torch.ones(1, device="cuda").is_cuda


def test_rows_name_operators_of_this_pytorch() -> None:
    for rule in RULES:
        packet, _, overload = rule.op.partition(".")
        if "::" not in packet:  # another library's, which may not be there
            operator = getattr(torch.ops.aten, packet)
            assert not overload or overload in operator.overloads(), rule.op
        assert rule.kind in KINDS
        assert rule.source
        assert rule.reason


# What the virtual device takes from PyTorch's experimental backend API. Each of these holds for PyTorch 2.13 (2.11 has
# not been tried); one that fails says which assumption another version breaks.


def test_a_python_backend_registers_under_its_name() -> None:
    backend.ensure_registered()
    assert torch._C._get_privateuse1_backend_name() == backend.DEVICE_TYPE
    assert torch.device(backend.DEVICE_TYPE, 0).index == 0
    backend.ensure_registered()  # a second time does nothing


def test_autograd_runs_the_backward_pass_through_the_device() -> None:
    with predict_syncs() as syncs:
        x = torch.ones(2, device="cuda", requires_grad=True)
        (x * 3).sum().backward()
        assert x.grad is not None
        assert x.grad.is_cuda
        assert x.grad.tolist() == [3.0, 3.0]
    assert syncs.operator_total > 3


def test_nodes_keep_the_stack_that_created_them() -> None:
    with predict_syncs():
        y = torch.ones(2, device="cuda", requires_grad=True) * 2
        assert any("test_predict_state.py" in entry for entry in y.grad_fn.metadata["traceback_"])


def test_module_conversion_keeps_the_identity_of_parameters() -> None:
    with predict_syncs():
        layer = nn.Linear(2, 2)
        weight = layer.weight
        assert layer.cuda().weight is weight
        assert isinstance(weight, nn.Parameter)
        assert layer.cpu().weight is weight
        assert not weight.is_cuda


def test_tensor_construction_shows_its_copy() -> None:
    with predict_syncs() as syncs:
        torch.tensor([1.0], device="cuda")
    assert [(site.op, site.kind) for site in syncs.sites] == [("aten::_to_copy", "h2d_copy")]
