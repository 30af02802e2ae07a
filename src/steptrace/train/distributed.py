"""Several processes that train one model: which of them this is, their group, and what they tell each other.

`torchrun` (`python -m torch.distributed.run`) starts one process per rank and says in the environment which one it is.
With a world of one there is no group and everything here does nothing.
"""

import gc
import os
import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist
from omegaconf import DictConfig
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from steptrace.errors import TrainError
from steptrace.machine import cpu_count
from steptrace.processes import die_with

#: How long a rank waits for the others, at the start and in any collective, before it gives up.
TIMEOUT: Final = timedelta(minutes=5)

#: Between the seeds of two ranks, so that no rank draws what another run's rank draws.
SEED_STRIDE: Final = 1_000_003

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class DistInfo:
    """Which of `world_size` processes this is; `local_rank` counts on this machine and names its GPU."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @property
    def alone(self) -> bool:
        """Whether there is no other process."""
        return self.world_size == 1


ALONE: Final = DistInfo()


def ranks_of(config: DictConfig) -> DistInfo:
    """Which rank of the config's world this process is, by the environment that `torchrun` sets.

    Raises:
        TrainError: the environment's world is not the config's, or there are fewer GPUs than ranks here.
    """
    wanted = config.distributed.world_size
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != wanted:
        raise TrainError(
            f"the config wants {wanted} ranks, and {started} were started",
            where="distributed.world_size",
            expected=f"a start by torchrun with {wanted} processes",
            next_step=f"python -m torch.distributed.run --standalone --nproc-per-node {wanted} -m steptrace.train ...",
        )
    if wanted == 1:
        return ALONE
    ranks = DistInfo(int(os.environ["RANK"]), started, int(os.environ.get("LOCAL_RANK", os.environ["RANK"])))
    if config.device == "cuda" and ranks.local_rank >= torch.cuda.device_count():
        raise TrainError(
            f"rank {ranks.rank} has no GPU: there are {torch.cuda.device_count()} for {wanted} ranks",
            where="distributed.world_size",
            expected="one GPU per rank",
            next_step=f"lower distributed.world_size to {torch.cuda.device_count() or 1}, or use scale=cpu",
        )
    return ranks


def backend_of(config: DictConfig) -> str:
    """The backend that the config names, else nccl on GPUs and gloo on CPUs."""
    return str(config.distributed.backend or ("nccl" if config.device == "cuda" else "gloo"))


@contextmanager
def process_group(config: DictConfig, ranks: DistInfo) -> Generator[None]:
    """The group of all ranks while the context is open.

    A rank that waits for another longer than `TIMEOUT` raises. A rank also ends with whoever started it, so that no
    rank of a run that was killed goes on alone.

    No model of `data_parallel` may outlive the context. It would hold the group last, and its destructor keeps the GIL
    while the group's destructor waits for gloo's threads; one of them may need the GIL to free a tensor, and the
    process never ends (PyTorch 2.13; see issue 56297 of pytorch/pytorch).

    Raises:
        TrainError: the backend is not part of this PyTorch.
    """
    if ranks.alone:
        yield
        return
    backend = backend_of(config)
    if not dist.is_available() or not dist.is_backend_available(backend):
        raise TrainError(
            f"this PyTorch has no backend {backend}", where="distributed.backend", expected="nccl on GPUs, else gloo"
        )
    # `torchrun` gives each rank a session of its own, which the supervisor's signal to its group does not reach.
    die_with(os.getppid(), signal.SIGKILL)
    # All ranks are on one machine. Otherwise gloo looks the machine's name up, which needs a network that knows it.
    if "lo" in (name for _, name in socket.if_nameindex()):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    own = None
    if config.device == "cuda":
        torch.cuda.set_device(ranks.local_rank)
        own = torch.device("cuda", ranks.local_rank) if backend == "nccl" else None
    dist.init_process_group(backend, timeout=TIMEOUT, rank=ranks.rank, world_size=ranks.world_size, device_id=own)
    yield
    gc.collect()  # models that are part of a cycle
    # Not after an error: there may be nobody left to say goodbye to, and the process ends anyway.
    dist.destroy_process_group()


def threads_of(config: DictConfig, ranks: DistInfo) -> int | None:
    """Threads of one rank: the config's, else the cores divided among the ranks; None: PyTorch's own choice."""
    if config.scale.threads is not None:
        return int(config.scale.threads)
    if ranks.alone:
        return None
    return max(1, cpu_count() // ranks.world_size)


def data_parallel(model: nn.Module, config: DictConfig, ranks: DistInfo) -> nn.Module:
    """The model with its gradients averaged over the ranks in buckets, as the config says; alone, the model itself."""
    if ranks.alone:
        return model
    settings = config.distributed
    wrapped = DistributedDataParallel(
        model,
        device_ids=[ranks.local_rank] if config.device == "cuda" else None,
        bucket_cap_mb=settings.bucket_cap_mb,
        gradient_as_bucket_view=settings.gradient_as_bucket_view,
        static_graph=settings.static_graph,
    )
    if settings.comm_hook is not None:
        wrapped.register_comm_hook(None, _HOOKS[settings.comm_hook])
    return wrapped


def _bf16(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """PyTorch's own hook under another name: it refuses that one by its name without NCCL, though gloo can do it."""
    return default_hooks.bf16_compress_hook(state, bucket)


_HOOKS: Final = {"bf16": _bf16, "fp16": default_hooks.fp16_compress_hook}


def barrier(ranks: DistInfo) -> None:
    """Wait until every rank is here."""
    if not ranks.alone:
        dist.barrier()


def from_every_rank(value: _Value, ranks: DistInfo) -> list[_Value]:
    """Each rank's value, by rank. Every rank must call this; values must be picklable."""
    if ranks.alone:
        return [value]
    values: list[Any] = [None] * ranks.world_size
    dist.all_gather_object(values, value)
    return values
