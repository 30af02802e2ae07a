"""What only a GPU can show: where the host waits, and that the loop itself never makes it wait."""

import warnings

import pytest
import torch

from steptrace.engine.memory import MemoryLook
from steptrace.lab.loop import train_step
from steptrace.lab.setup import training
from steptrace.run_folder import read_run, read_steps

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

LOSSES = "steptrace.workloads.masked_losses."


def host_waits(make_config, loss, **changes):
    """Syncs that PyTorch warns of in one step, after two steps that settle the allocators."""
    config = make_config({"device": "cuda", "loss._target_": LOSSES + loss, **changes})
    with training(config, 7) as parts, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            train_step(parts)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            train_step(parts)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    # Switching the mode on warns as well, that it does not see everything.
    return [str(w.message) for w in caught if "called a synchronizing CUDA operation" in str(w.message)]


def test_the_loop_with_the_last_variant_never_waits(make_config):
    assert host_waits(make_config, "IgnoreIndexLoss") == []


def test_each_variant_waits_less_often_than_the_one_before(make_config):
    counts = [
        len(host_waits(make_config, loss)) for loss in ("BooleanMaskLoss", "WhereLoss", "SortLoss", "IgnoreIndexLoss")
    ]
    assert counts == sorted(counts, reverse=True)
    assert len(set(counts)) == 4


def test_a_copy_that_blocks_is_seen(make_config):
    assert len(host_waits(make_config, "IgnoreIndexLoss", **{"data.non_blocking": False})) == 2


def test_a_gpu_run_records_events_memory_and_the_gpu(trained):
    out = trained({"device": "cuda", "scale.name": "gpu"})
    record = read_run(out)
    assert record.clock == "cuda_events"
    assert record.environment.gpu == torch.cuda.get_device_name()
    assert 0 < record.peak_allocated_bytes <= record.peak_reserved_bytes
    assert record.nvml is not None or record.warnings
    steps = read_steps(out)
    assert (steps["step_ns"] > 0).all()
    assert steps["loss"].notna().all()


def test_cublas_workspaces_are_counted_and_given_back():
    torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
    looks = [MemoryLook((), ()), MemoryLook((), ())]
    for look in looks:
        look.note_held()
        look.note_workspaces()
    assert looks[0].record["held"]["workspaces"] > 0
    assert looks[1].record["held"]["workspaces"] == 0
