"""What a training holds; for real, on a CPU."""

import pytest
import torch

from documents import fill
from steptrace.documents.run import RunMemory
from steptrace.engine.device import MemoryLook, free_blocks
from steptrace.record import read_memory, write_memory
from steptrace.train.loop import train_step
from steptrace.train.main import main
from steptrace.train.setup import training


def test_a_run_counts_its_parameters_gradients_and_optimizer_state(write_config, make_config, tmp_path):
    assert main([str(write_config({"scale.memory_limit_mb": 1})), "--out", str(tmp_path), "--repeat", "0"]) == 0
    memory = read_memory(tmp_path)
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
    write_memory(tmp_path, memory)
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
