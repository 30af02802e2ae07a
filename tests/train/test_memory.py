"""What a training holds, the limit on it, and what it tells when it runs out; for real, on a CPU."""

import json
import subprocess
import sys

import pytest
import torch

from documents import fill
from steptrace.documents.run import RunMemory
from steptrace.engine.memory import free_blocks
from steptrace.record import MEMORY_FILE, read_memory, write_memory
from steptrace.train.main import main
from steptrace.train.memory import is_out_of_memory, requested_bytes, watched_memory
from steptrace.train.setup import training

#: Forward alone keeps some 70 MB of each of the two hidden layers, the batch takes 21 MB.
LARGE = {"data.dataset.image_size": 256, "data.batch_size": 16, "data.dataset.length": 16, "model.hidden": 16}
MIB = 2**20


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


@pytest.mark.usefixtures("forked_programs")
def test_a_training_beyond_its_limit_says_what_it_asked_for(write_config, tmp_path):
    config, out = write_config({**LARGE, "scale.memory_limit_mb": 230}), tmp_path / "run0"
    # In a process of its own: memory that this one had and gave back is within no limit.
    command = [
        sys.executable,
        "-m",
        "steptrace.train",
        str(config),
        "--out",
        str(out),
        "--repeat",
        "0",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "DefaultCPUAllocator" in done.stderr
    memory = read_memory(out)
    assert memory is not None
    assert memory.oom is not None
    assert (memory.capacity_bytes, memory.capacity_source, memory.batch_size) == (230 * MIB, "limit", 16)
    assert memory.oom.requested_bytes == 16 * 16 * 256 * 256 * 4
    assert memory.held["parameters"] > 0
    assert memory.oom.used_bytes is not None
    assert 0 < memory.oom.used_bytes <= 230 * MIB


def test_the_limit_ends_with_the_training(make_config):
    config = make_config({"scale.memory_limit_mb": 50})
    size = 1024 * MIB  # more than earlier tests can have freed in one piece, which is within any limit
    with pytest.raises(RuntimeError) as caught, watched_memory(config, torch.device("cpu"), None):
        torch.empty(size, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert requested_bytes(str(caught.value)) == size
    assert torch.empty(size, dtype=torch.uint8).numel()


@pytest.mark.parametrize("limit", [50, None])
def test_a_library_that_could_not_work_under_a_limit_had_no_memory(make_config, tmp_path, limit):
    config = make_config({"scale.memory_limit_mb": limit})
    cpu, error = torch.device("cpu"), RuntimeError if limit is None else MemoryError
    with pytest.raises(error, match="could not create a primitive"), watched_memory(config, cpu, tmp_path):
        raise RuntimeError("could not create a primitive")
    assert (read_memory(tmp_path) is not None) == (limit is not None)


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
    assert free_blocks() == {}
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: index)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert free_blocks() == {"free_bytes": free, "largest_free_bytes": largest}
