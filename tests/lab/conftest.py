"""A resolved config small enough to run in a fraction of a second, and what tests do with it."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import asdict
from omegaconf import DictConfig, OmegaConf

from steptrace.config.resolved import TrainingConfig, resolved_config
from steptrace.config.schema import DistributedConfig, ScaleConfig, StepConfig
from variant_runs import log_of, measure

TINY = OmegaConf.create("""
study: tiny
variant: ignore_index
seed: 7
device: cpu
model: {_target_: steptrace.workloads.segmentation.SegmentationNet, in_channels: 3, hidden: 2, layers: 1, classes: 10}
loss: {_target_: steptrace.workloads.masked_losses.IgnoreIndexLoss}
data:
  dataset: {_target_: steptrace.workloads.segmentation.RandomMasks, length: 6, image_size: 8, seed: 7}
  batch_size: 2
  num_workers: 0
  pin_memory: true
  non_blocking: true
  shuffle: true
  prefetch_factor: 2
  persistent_workers: true
  device_prefetch: false
  pool: null
optimizer: {_target_: torch.optim.SGD, _partial_: true, lr: 0.1, momentum: 0.9}
precision: {name: fp32, autocast: null, tf32: false, grad_scaler: false, tolerance: {loss: 1e-5, gradient: 1e-4}}
profile: {warmup: 1, active: 2, record_shapes: true, profile_memory: true, with_stack: true, repeats: null}
equivalence: {seeds: [0, 1], batch_size: 2, model: {}}
python_path: []
""")
TINY.update(
    digest="0" * 64,
    step=asdict(StepConfig()),
    distributed=asdict(DistributedConfig()),
    scale=asdict(ScaleConfig(name="cpu", warmup_steps=2, timed_steps=4)),
)

MakeConfig = Callable[..., TrainingConfig]


def changed(changes: dict[str, Any] | None) -> DictConfig:
    """The tiny config with changes given by dotted key."""
    config = copy.deepcopy(TINY)
    for key, value in (changes or {}).items():
        OmegaConf.update(config, key, value, merge=False)
    if config.data.num_workers == 0:
        config.data.update(prefetch_factor=None, persistent_workers=False)
    return config


@pytest.fixture
def make_config() -> MakeConfig:
    """Builds the tiny config with changes given by dotted key: `make_config({"data.batch_size": 3})`."""

    def make(changes: dict[str, Any] | None = None) -> TrainingConfig:
        config = resolved_config(OmegaConf.to_container(changed(changes)), "the tiny config")
        assert isinstance(config, TrainingConfig)
        return config

    return make


@pytest.fixture
def write_config(tmp_path: Path) -> Callable[..., Path]:
    """Like `make_config`, but writes the config to a file and returns its path."""

    def write(changes: dict[str, Any] | None = None, *, name: str = "config.yaml") -> Path:
        path = tmp_path / name
        OmegaConf.save(changed(changes), path)
        return path

    return write


@pytest.fixture
def trained(write_config: Callable[..., Path], tmp_path: Path, forked_programs: None) -> Callable[..., Path]:  # noqa: ARG001
    """Trains the tiny config with changes, in a measured process, to a good end; returns the run's folder."""

    def train(changes: dict[str, Any] | None = None, *, to: str = "run", repeat: int = 0) -> Path:
        out = tmp_path / to
        status = measure(write_config(changes), out, repeat)
        assert status.status == "ok", (status.error, log_of(out))
        return out

    return train


@pytest.fixture(autouse=True)
def process_settings_restored() -> Any:
    """A run sets the thread count and TF32 for its process; the next test starts from PyTorch's own."""
    threads = torch.get_num_threads()
    tf32 = torch.backends.cudnn.allow_tf32
    matmul = torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(threads)
    torch.backends.cudnn.allow_tf32 = tf32
    torch.set_float32_matmul_precision(matmul)
