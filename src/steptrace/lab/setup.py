"""Builds the parts of a training from a resolved config.

A `_target_` may be the user's code: the folders in `python_path` are searched before the installed packages. It gets
lists and mappings as plain Python containers (`_convert_="all"`): OmegaConf's own are slow to read, and many libraries
reject them.
"""

import random
import sys
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from torch.utils.data import DataLoader, Dataset, default_collate
from torch.utils.data.distributed import DistributedSampler

from steptrace.config.resolved import TrainingConfig, read_training
from steptrace.config.schema import RootConfig
from steptrace.engine.memory import tensors_of
from steptrace.errors import TrainError
from steptrace.lab.distributed import SEED_STRIDE, data_parallel, threads_of
from steptrace.lab.loop import Batch, LossReader, Training, to_device
from steptrace.lab.precision import NumberFormats, prepared
from steptrace.lab.targets import check_targets
from steptrace.rank import ALONE, Rank


def load_config(path: Path) -> TrainingConfig:
    """Read a resolved config, and make its `python_path` importable.

    Raises:
        ConfigError: it cannot be read, lacks a key, or has a forbidden `_target_`.
    """
    config = read_training(path)
    for folder in reversed(config.python_path):
        location = str(Path(folder).resolve())
        if location not in sys.path:
            sys.path.insert(0, location)
    check_targets(msgspec.to_builtins(config), where=path)
    return config


def device_of(config: RootConfig) -> torch.device:
    """The device that the config names.

    Raises:
        TrainError: it is a GPU, and PyTorch has none.
    """
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
    np.random.seed(seed)  # a user's model or data may draw from the global generators
    torch.manual_seed(seed)


def build_loss(config: RootConfig, device: torch.device) -> Any:
    """The config's loss, on `device` if it is a module."""
    loss = instantiate(config.loss, _convert_="all")
    return loss.to(device) if isinstance(loss, torch.nn.Module) else loss


def build_dataset(config: RootConfig, seed: int) -> Dataset[Batch]:
    """The config's data set; if it takes a seed, it gets `seed`."""
    settings = config.data.dataset
    seeded = {"seed": seed} if "seed" in settings else {}
    return instantiate(settings, **seeded, _convert_="all")  # type: ignore[no-any-return]


def collate_of(dataset: Dataset[Batch]) -> Callable[[list[Any]], Any]:
    """The collate function: the data set's own `collate` if it has one, else PyTorch's default."""
    return getattr(dataset, "collate", default_collate)


@contextmanager
def training(config: RootConfig, seed: int, ranks: Rank = ALONE) -> Generator[Training]:
    """The parts of a training, built from `seed`. The loader's workers end with the context."""
    device = device_of(config)
    threads = threads_of(config, ranks)
    if threads is not None:
        torch.set_num_threads(threads)

    def batches() -> Generator[Batch]:
        loader = build_loader(config, device, seed, ranks)
        pooled = endless(loader) if config.data.pool is None else _repeated(loader, config.data.pool)
        return copied_ahead(pooled, config, device)

    parts = assembled(config, device, seed, batches, ranks)
    with closing(parts.batches):
        yield parts


def assembled(
    config: RootConfig,
    device: torch.device,
    seed: int,
    batches: Callable[[], Generator[Batch]],
    ranks: Rank = ALONE,
) -> Training:
    """The parts of a training on `device`. `batches` is called after the model is built.

    All ranks start with the same weights. They share one order of samples, and each rank takes its part of it. Later
    random numbers, such as those of dropout, use `seed` + rank x `SEED_STRIDE`.
    """
    precision = NumberFormats.from_config(config.precision, device.type)
    precision.apply()
    model = prepared(_drawn_on(device, config, seed).train(), config.step)
    loss = build_loss(config, device)
    loaded = batches()
    model = data_parallel(model, config, ranks)
    if ranks.rank:
        seed_everything(seed + ranks.rank * SEED_STRIDE)
    return Training(
        model=model,
        loss=loss,
        optimizer=instantiate(config.optimizer, _convert_="all")(model.parameters()),
        precision=precision,
        scaler=precision.scaler(),
        batches=loaded,
        device=device,
        non_blocking=config.data.non_blocking,
        accumulate=config.step.accumulate,
        no_sync=config.distributed.no_sync,
        set_to_none=config.step.set_to_none,
        reader=LossReader(config.step.read_loss_every),
        ranks=ranks,
    )


def _drawn_on(device: torch.device, config: RootConfig, seed: int) -> torch.nn.Module:
    """The config's model on `device`. Its weights follow from `seed`, and are the same for all variants and ranks.

    The weights are drawn on the GPU, since a CPU may take longer for 10^9 of them than a GPU for a run's steps. A model
    that cannot be built there, for example because it has a generator of its own, is built on the CPU.
    """
    seed_everything(seed)
    if device.type != "cpu":
        with suppress(InstantiationException), device:
            return instantiate(config.model, _convert_="all").to(device)  # type: ignore[no-any-return]
        seed_everything(seed)
    return instantiate(config.model, _convert_="all").to(device)  # type: ignore[no-any-return]


def build_loader(config: RootConfig, device: torch.device, seed: int, ranks: Rank = ALONE) -> DataLoader[Batch]:
    """The config's loader, which shuffles by `seed`. It has whole batches only, so that all steps do the same work.

    Each of n ranks takes every n-th sample of one shared order. All ranks take the same number of samples.
    """
    data = config.data
    options: dict[str, Any] = {}
    if data.num_workers > 0:
        options = {"prefetch_factor": data.prefetch_factor, "persistent_workers": data.persistent_workers}
    dataset = build_dataset(config, seed)
    sampler: DistributedSampler[Any] | None = None
    if not ranks.alone:
        sampler = DistributedSampler(
            dataset, ranks.world_size, ranks.rank, shuffle=data.shuffle, seed=seed, drop_last=True
        )
    loader = DataLoader(
        dataset,
        batch_size=data.batch_size,
        shuffle=data.shuffle if sampler is None else None,
        sampler=sampler,
        num_workers=data.num_workers,
        pin_memory=data.pin_memory and device.type == "cuda",  # pinned memory speeds up copies to a GPU only
        drop_last=True,
        collate_fn=collate_of(dataset),
        generator=torch.Generator().manual_seed(seed),
        **options,
    )
    if len(loader) == 0:
        raise TrainError(
            f"the data set holds less than one batch of {data.batch_size}{'' if ranks.alone else ' per rank'}",
            where="data",
            expected="at least batch_size samples",
            next_step="raise the data set's length or lower data.batch_size",
        )
    return loader


def endless(loader: DataLoader[Batch]) -> Generator[Batch]:
    """The loader's batches, epoch after epoch."""
    epoch = 0
    while True:
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def _repeated(loader: DataLoader[Batch], count: int) -> Generator[Batch]:
    """The loader's first `count` batches, repeated without an end, for a study that is not about loading.

    All are loaded before the first step, and then the workers end. A step must not change a batch in place.
    """
    source = endless(loader)
    batches = list(islice(source, count))
    source.close()
    while True:
        yield from batches


def copied_ahead(batches: Generator[Batch], config: RootConfig, device: torch.device) -> Generator[Batch]:
    """The same batches; with `data.device_prefetch` and a GPU each is copied one batch ahead."""
    if config.data.device_prefetch and device.type == "cuda":
        return prefetched(batches, device, non_blocking=config.data.non_blocking)
    return batches


def prefetched(batches: Generator[Batch], device: torch.device, *, non_blocking: bool) -> Generator[Batch]:
    """The same batches in the same order, each copied to the GPU one batch ahead of the step that trains on it.

    This is the config's `data.device_prefetch`. The copy runs on a separate stream, so it overlaps with computation
    even if the step ends with a sync. This needs pinned memory and `non_blocking`: a copy from pageable memory blocks
    the host on any stream.

    Closing it closes `batches`.
    """
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def fetched() -> tuple[Batch, torch.cuda.Event]:
        batch = next(batches)
        with torch.cuda.stream(stream):
            return to_device(batch, device, non_blocking=non_blocking), stream.record_event()

    with closing(batches):
        ahead = fetched()
        while True:
            batch, copied = ahead
            # Load before the step is queued: the wait for the loader is the same, but the copy is queued before a step
            # that may end with a sync.
            ahead = fetched()
            _hand_over(batch, copied, device)
            yield batch


def _hand_over(batch: Batch, copied: torch.cuda.Event, device: torch.device) -> None:
    """Make the computing stream wait for a batch's copy, and protect the batch's memory from the next copy.

    The allocator reuses a freed block on its own stream at once. A batch is freed when its step has been queued, long
    before it is computed: without `record_stream` the next copy would overwrite it.
    """
    current = torch.cuda.current_stream(device)
    current.wait_event(copied)
    for tensor in tensors_of(batch):
        tensor.record_stream(current)
