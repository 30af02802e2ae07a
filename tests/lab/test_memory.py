"""What a training holds, that a look at it never stops the training; for real, on a CPU."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from documents import fill
from steptrace.documents.run import RunMemory
from steptrace.engine.memory import MemoryLook, free_blocks, modules_of
from steptrace.lab.loop import train_step
from steptrace.lab.setup import training
from steptrace.run_folder import read_memory, write_document


def test_a_run_counts_its_parameters_gradients_and_optimizer_state(trained, make_config):
    memory = read_memory(trained({"scale.memory_limit_mb": 1}))
    with training(make_config(), 7) as parts:
        size = sum(parameter.nbytes for parameter in parts.model.parameters())
    assert memory is not None
    assert memory.held == {"parameters": size, "gradients": 0, "optimizer_state": size}
    assert memory.gradient_bytes == size
    assert (memory.device, memory.batch_size) == ("cpu", 2)
    assert (memory.capacity_bytes, memory.capacity_source) == (2**20, "limit")
    assert (memory.free_bytes, memory.fragmentation) == (None, None)


def test_gradients_filled_with_zeros_are_held_between_steps(make_config):
    config = make_config({"step.set_to_none": False})
    with training(config, 7) as parts:
        memory = MemoryLook([parts.model], [parts.optimizer])
        train_step(parts, memory)
        memory.note_held()
        assert all(parameter.grad is not None for parameter in parts.model.parameters())
    held = memory.record["held"]
    assert held["gradients"] == memory.record["gradient_bytes"] == held["parameters"]


def test_the_record_survives_its_file_and_knows_its_fragmentation(tmp_path):
    memory = fill(RunMemory, {"device": "cuda", "free_bytes": 400, "largest_free_bytes": 100})
    write_document(tmp_path, memory)
    assert read_memory(tmp_path) == memory
    assert memory.fragmentation == 0.75
    assert read_memory(tmp_path / "none") is None


@pytest.mark.parametrize(("index", "free", "largest"), [(0, 50, 30), (1, 900, 900)])
def test_free_blocks_are_those_of_the_gpu_in_use(monkeypatch, index, free, largest):
    segments = [
        {"device": 0, "blocks": [{"state": "inactive", "size": 20}, {"state": "active_allocated", "size": 500}]},
        {"device": 1, "blocks": [{"state": "inactive", "size": 900}]},
        {"device": 0, "blocks": [{"state": "active_pending_free", "size": 70}, {"state": "inactive", "size": 30}]},
    ]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert free_blocks() == {}
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: index)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert free_blocks() == {"free_bytes": free, "largest_free_bytes": largest}


def test_gradients_are_those_at_the_end_of_the_last_backward_pass() -> None:
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    look = MemoryLook([model], [optimizer])
    with look("optimizer"):
        assert look.record == {}
    with look("backward"):
        model(torch.ones(2, 3)).sum().backward()
    optimizer.zero_grad()
    look.note_held()
    look.note_workspaces()  # there are none on a CPU
    assert look.record == {
        "gradient_bytes": 64,
        "held": {"parameters": 64, "gradients": 0, "optimizer_state": 0},
    }


def test_what_cannot_be_counted_stops_no_backward_pass() -> None:
    look = MemoryLook([], [SimpleNamespace(param_groups=[{"params": ["none"]}])])
    passed = False
    with look("backward"):
        passed = True
    assert passed
    assert look.record == {}


class Quantized(Tensor):
    """A tensor that wraps the one that holds its values, as libraries of quantized weights and optimizers have it."""

    @staticmethod
    def __new__(cls, codes: Tensor) -> "Quantized":
        return Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes: Tensor) -> None:
        self.codes = codes

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


def test_of_a_tensor_that_wraps_another_the_memory_is_that_of_the_other() -> None:
    state = {"weight": {"mean": Quantized(torch.zeros(8, dtype=torch.int8))}}
    look = MemoryLook([], [SimpleNamespace(param_groups=[], state=state)])
    assert look.held() == {"parameters": 0, "gradients": 0, "optimizer_state": 8}


def test_the_modules_are_those_with_a_trained_parameter_and_all_around_them() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    other = nn.Linear(3, 4)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1), SimpleNamespace()]
    assert {id(module) for module in modules_of(optimizers)} == {id(model), id(model[0])}
    assert id(other) not in {id(module) for module in modules_of(optimizers)}
