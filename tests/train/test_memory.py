"""What a training holds, and what it tells when it runs out; for real, on a CPU."""

import json

import pytest
import torch

from documents import fill
from steptrace.documents.run import RunMemory
from steptrace.engine.memory import free_blocks
from steptrace.record import MEMORY_FILE, read_memory, write_memory
from steptrace.train.main import main
from steptrace.train.memory import requested_bytes, watched_memory
from steptrace.train.setup import training

MIB = 2**20
GREEDY = """
import torch

class Loss(torch.nn.Module):
    def forward(self, output, target):
        return output.mean() + torch.empty(2**60, dtype=torch.uint8).sum()
"""


def test_a_run_counts_its_parameters_gradients_and_optimizer_state(write_config, make_config, tmp_path):
    assert main([str(write_config()), "--out", str(tmp_path), "--repeat", "0"]) == 0
    memory = read_memory(tmp_path)
    with training(make_config(), 7) as parts:
        size = sum(parameter.nbytes for parameter in parts.model.parameters())
    assert memory is not None
    assert memory.held == {"parameters": size, "gradients": 0, "optimizer_state": size}
    assert memory.gradient_bytes == size
    assert (memory.device, memory.batch_size, memory.capacity_source) == ("cpu", 2, "machine")
    assert (memory.free_bytes, memory.fragmentation, memory.oom) == (None, None, None)


def test_gradients_filled_with_zeros_are_held_between_steps(make_config):
    config = make_config({"step.set_to_none": False})
    cpu = torch.device("cpu")
    with watched_memory(config, cpu, None) as memory, training(config, 7) as parts:
        memory.watch(parts)
        memory.measure()
        assert all(parameter.grad is not None for parameter in parts.model.parameters())
    held = memory.look.record["held"]
    assert held["gradients"] == memory.look.record["gradient_bytes"] == held["parameters"]


def test_a_training_that_runs_out_says_what_it_asked_for_and_held(write_config, tmp_path, monkeypatch):
    (tmp_path / "greedy_loss.py").write_text(GREEDY)
    monkeypatch.syspath_prepend(tmp_path)
    config = write_config({"loss": {"_target_": "greedy_loss.Loss"}, "scale.memory_limit_mb": 230})
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        main([str(config), "--out", str(tmp_path / "run0")])
    memory = read_memory(tmp_path / "run0")
    assert memory is not None
    assert memory.oom is not None
    assert (memory.capacity_bytes, memory.capacity_source, memory.batch_size) == (230 * MIB, "limit", 2)
    assert memory.oom.requested_bytes == 2**60
    assert memory.held["parameters"] > 0
    assert memory.oom.used_bytes is None


def test_another_error_leaves_no_memory_json(make_config, tmp_path):
    with pytest.raises(RuntimeError, match="a primitive"), watched_memory(make_config(), torch.device("cpu"), tmp_path):
        raise RuntimeError("could not create a primitive")
    assert read_memory(tmp_path) is None


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 10485760 bytes. Error code 12", 10485760),
        ("CUDA out of memory. Tried to allocate 20.50 GiB. GPU 0 has a total capacity of 9 GiB", 22011707392),
        ("std::bad_alloc", None),
    ],
)
def test_requested_bytes_by_message(message, expected):
    assert requested_bytes(message) == expected


def test_the_record_survives_its_file_and_knows_its_fragmentation(tmp_path):
    memory = fill(RunMemory, {"device": "cuda", "free_bytes": 400, "largest_free_bytes": 100})
    write_memory(tmp_path, memory)
    assert read_memory(tmp_path) == memory
    assert memory.fragmentation == 0.75
    assert json.loads((tmp_path / MEMORY_FILE).read_text())["oom"] is None
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
