"""A prediction leaves nothing behind, and its rows name operators that this PyTorch has."""

import importlib
import subprocess
import sys

import pytest
import torch
from torch.utils import _foreach_utils

import accelerator_script
from steptrace.errors import PredictError
from steptrace.predict import backend, captured, cuda_functions, predict_syncs
from steptrace.predict.backend import EngineAfterPrediction
from steptrace.predict.sync_rule import KINDS
from steptrace.predict.sync_rules import RULES
from steptrace.torch_names import release_of

needs_inductor = pytest.mark.skipif(
    release_of(torch.__version__) < captured._OLDEST, reason="finding the kernels of compiled code takes PyTorch 2.13"
)


def state() -> dict[str, object]:
    record_function = torch.autograd.profiler.record_function
    optimizers = importlib.import_module("torch.optim.optimizer")
    return {
        "cuda": {name: getattr(torch.cuda, name, None) for name in cuda_functions.CUDA},
        "accelerator": {name: getattr(torch.accelerator, name, None) for name in cuda_functions.ACCELERATOR},
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
def test_a_prediction_leaves_the_process_state_unchanged(step):
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
def test_a_program_may_have_run_a_backward_pass_before():
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


@needs_inductor
@pytest.mark.usefixtures("forked_programs")
def test_a_program_may_compile_for_real_after_a_prediction_of_compiled_code():
    """In a process of its own: Inductor makes its patterns once a process and refuses to make one twice."""
    program = """
import torch
from steptrace.predict import Prediction, predict_syncs

def probabilities(x):
    return torch.softmax(x, -1).sum()

with predict_syncs(follow_compiled=True) as syncs:
    torch.compile(probabilities)(torch.ones(4, 8, device="cuda"))
    (code,) = Prediction.so_far(syncs).compiled.codes
torch.compiler.reset()
print(code.unlowered, torch.compile(probabilities)(torch.ones(4, 8)).item())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "None 4.0\n"), done.stderr


def test_the_device_is_gone_afterwards():
    if torch.cuda.is_available():
        pytest.skip("a machine with a GPU keeps its own device")
    with predict_syncs():
        pass
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(2, device="cuda")


def test_a_second_prediction_inside_the_first_is_refused_and_leaves_it_intact():
    with predict_syncs() as syncs:
        x = torch.ones(1, device="cuda")
        with pytest.raises(PredictError, match="already active"), predict_syncs():
            pass
        x.item()
    assert syncs.total == 1
    with predict_syncs() as again:
        torch.ones(1, device="cuda").item()
    assert again.total == 1


def test_another_owner_of_the_backend_is_an_error(monkeypatch):
    monkeypatch.setattr(backend, "_BACKEND_NAME", lambda: "npu")
    with pytest.raises(PredictError, match="taken by 'npu'"), predict_syncs():
        pass
    monkeypatch.undo()
    with predict_syncs():
        assert torch.ones(1, device="cuda").is_cuda


def test_rows_name_operators_of_this_pytorch():
    for rule in RULES:
        packet, _, overload = rule.op.partition(".")
        if "::" not in packet:  # another library's, which may not be there
            operator = getattr(torch.ops.aten, packet)
            assert not overload or overload in operator.overloads(), rule.op
        assert rule.kind in KINDS
        assert rule.source
        assert rule.reason


def test_a_backward_pass_on_a_real_gpu_after_a_prediction_says_why_it_fails():
    class Fails:
        def run_backward(self, error: str) -> None:
            raise RuntimeError(error)

    engine = EngineAfterPrediction(Fails())
    with pytest.raises(RuntimeError, match="train before the prediction"):
        engine.run_backward('opt_ready_stream && opt_parent_stream INTERNAL ASSERT FAILED at "engine.cpp":1096')
    with pytest.raises(RuntimeError, match="element 0 of tensors"):
        engine.run_backward("element 0 of tensors does not require grad")


WITH_A_GPU = """
import torch
torch.cuda.is_available = lambda: True
from steptrace.predict import predict_syncs
with predict_syncs():
    weight = torch.ones(3, device="cuda").requires_grad_()
    weight.sum().backward()
print(type(torch.autograd.Variable._execution_engine).__name__)
"""


def test_the_engine_that_says_so_stays_in_a_process_with_a_gpu():
    done = subprocess.run([sys.executable, "-c", WITH_A_GPU], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == EngineAfterPrediction.__name__


def test_the_accelerator_answers_after_a_prediction_as_before():
    """In a process without a GPU; tests/standin has one with a GPU."""
    assert accelerator_script.differences_after_a_prediction() == []
