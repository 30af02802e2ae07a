"""From a resolved config to the parts of a training.

The config was validated when it was composed; here it is only read. A `_target_` may be anyone's code: the folders in
`python_path` are searched before the installed packages.
"""

import random
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch.utils.data import DataLoader, Dataset, default_collate
from yaml import YAMLError

from steptrace.errors import ConfigError, TrainError
from steptrace.train.loop import Batch, Training
from steptrace.train.precision import Precision

#: What a resolved config holds at its top.
_KEYS = (
    "study",
    "variant",
    "digest",
    "seed",
    "device",
    "model",
    "loss",
    "data",
    "optimizer",
    "precision",
    "step",
    "distributed",
    "scale",
    "profile",
    "equivalence",
    "python_path",
)


def load_config(path: Path) -> DictConfig:
    """Read a resolved config and make its `python_path` importable; `ConfigError` if it cannot be read."""
    try:
        config = OmegaConf.load(path)
    except (OSError, YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"config cannot be read ({error})", where=path, expected="a YAML mapping") from error
    if not isinstance(config, DictConfig):
        raise ConfigError("config is not a mapping", where=path, expected="a YAML mapping")
    missing = [key for key in _KEYS if key not in config]
    if missing:
        raise ConfigError(f"config lacks {', '.join(missing)}", where=path, expected="a resolved config of a variant")
    for folder in reversed(config.python_path):
        location = str(Path(folder).resolve())
        if location not in sys.path:
            sys.path.insert(0, location)
    return config


def device_of(config: DictConfig) -> torch.device:
    """The device that the config names; `TrainError` if this machine has none."""
    device = torch.device(config.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise TrainError(
            "no GPU is available to PyTorch",
            where="device: cuda",
            expected="a CUDA device and a CUDA build of PyTorch",
            next_step="use scale=cpu, or run on a GPU node",
        )
    return device


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and PyTorch (all devices)."""
    random.seed(seed)
    np.random.seed(seed)  # the global generators too: a user's model or data may draw from them
    torch.manual_seed(seed)


def build_dataset(config: DictConfig, seed: int) -> Dataset[Batch]:
    """The config's data set, with `seed` in place of its own seed where it takes one."""
    settings = config.data.dataset
    return instantiate(settings, seed=seed) if "seed" in settings else instantiate(settings)  # type: ignore[no-any-return]


def collate_of(dataset: Dataset[Batch]) -> Callable[[list[Any]], Any]:
    """What makes a batch of the data set's samples: its own `collate` if it has one, else PyTorch's default."""
    return getattr(dataset, "collate", default_collate)


@contextmanager
def training(config: DictConfig, seed: int) -> Generator[Training]:
    """Build everything that a step needs, from `seed` alone; loader workers are gone when the context ends."""
    device = device_of(config)
    precision = Precision.from_config(config.precision, device.type)
    precision.apply()
    if config.scale.threads is not None:
        torch.set_num_threads(config.scale.threads)
    seed_everything(seed)
    model = instantiate(config.model).to(device).train()
    loss = instantiate(config.loss)
    if isinstance(loss, torch.nn.Module):
        loss = loss.to(device)
    loader = build_loader(config, device, seed)
    batches = _endless(loader)
    try:
        yield Training(
            model=model,
            loss=loss,
            optimizer=instantiate(config.optimizer)(model.parameters()),
            precision=precision,
            scaler=precision.scaler(),
            batches=batches,
            device=device,
            non_blocking=config.data.non_blocking,
        )
    finally:
        batches.close()


def build_loader(config: DictConfig, device: torch.device, seed: int) -> DataLoader[Batch]:
    """The config's loader, shuffling by `seed`. Only whole batches, so that all steps do the same work."""
    data = config.data
    options: dict[str, Any] = {}
    if data.num_workers > 0:
        options = {"prefetch_factor": data.prefetch_factor, "persistent_workers": data.persistent_workers}
    dataset = build_dataset(config, seed)
    loader = DataLoader(
        dataset,
        batch_size=data.batch_size,
        shuffle=data.shuffle,
        num_workers=data.num_workers,
        pin_memory=data.pin_memory and device.type == "cuda",  # pinned memory speeds up copies to a GPU only
        drop_last=True,
        collate_fn=collate_of(dataset),
        generator=torch.Generator().manual_seed(seed),
        **options,
    )
    if len(loader) == 0:
        raise TrainError(
            f"the data set holds less than one batch of {data.batch_size}",
            where="data",
            expected="at least batch_size samples",
            next_step="raise the data set's length or lower data.batch_size",
        )
    return loader


def _endless(loader: DataLoader[Batch]) -> Generator[Batch]:
    """The loader's batches, epoch after epoch."""
    while True:
        yield from loader
