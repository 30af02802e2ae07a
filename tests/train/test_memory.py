"""What a training holds; for real, on a CPU."""

from documents import fill
from steptrace.documents.run import RunMemory
from steptrace.engine.memory import held_bytes
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
    assert (memory.device, memory.batch_size) == ("cpu", 2)
    assert (memory.capacity_bytes, memory.capacity_source) == (2**20, "limit")


def test_gradients_filled_with_zeros_are_held_between_steps(make_config):
    config = make_config({"step.set_to_none": False})
    with training(config, 7) as parts:
        train_step(parts)
        held = held_bytes([parts.model], [parts.optimizer])
        assert all(parameter.grad is not None for parameter in parts.model.parameters())
    assert held["gradients"] == held["parameters"]


def test_the_record_survives_its_file(tmp_path):
    memory = fill(RunMemory, {"device": "cuda"})
    write_memory(tmp_path, memory)
    assert read_memory(tmp_path) == memory
    assert read_memory(tmp_path / "none") is None
