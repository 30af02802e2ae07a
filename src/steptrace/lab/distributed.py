"""Distributed training: this process's rank, the process group, and the bandwidth between the ranks.

`torchrun` (`python -m torch.distributed.run`) starts one process per rank, and gives the rank in the environment. A
single rank has no process group, and the functions here do nothing.

The bandwidth between the ranks is measured after the last step, outside the profiled window, by all-reduces of as many
bytes as the gradients have. It gives the expected time of the gradients' all-reduce. An all-reduce that takes longer in
a step waits for something else.
"""

import gc
import os
import signal
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from steptrace.config.schema import RootConfig
from steptrace.documents.run import Communication
from steptrace.engine.clock import current_clock
from steptrace.errors import TrainError
from steptrace.machine import cpu_count
from steptrace.processes import die_with
from steptrace.rank import Rank, this_rank
from steptrace.torch_names import has

#: The timeout of a rank that waits for the others, at the start and in any collective.
TIMEOUT: Final = timedelta(minutes=5)
#: Difference between the seeds of two ranks, so that ranks of different repeats never share a seed.
SEED_STRIDE: Final = 1_000_003
#: The most bytes of the message by which the bandwidth is measured.
_MOST_BYTES: Final = 1 << 28
#: How often the message is sent before the measurement, and in it.
_WARMUP: Final = 2
_REPEATS: Final = 7
#: Bytes per parameter in the source of the simplified formula: float32, also under mixed precision.
_SIMPLIFIED_BYTES: Final = 4


def ranks_of(config: RootConfig) -> Rank:
    """This process's rank, from the environment that `torchrun` sets.

    Raises:
        TrainError: the environment's world size differs from the config's.
    """
    wanted = config.distributed.world_size
    ranks = this_rank()
    if ranks.world_size != wanted:
        raise TrainError(
            f"the config needs {wanted} ranks, but {ranks.world_size} were started",
            where="distributed.world_size",
            expected=f"a start by torchrun with {wanted} processes",
            next_step=f"python -m torch.distributed.run --standalone --nproc-per-node {wanted} -m steptrace.lab ...",
        )
    return ranks


def _backend_of(config: RootConfig) -> str:
    """The backend of the process group: nccl on GPUs, gloo on CPUs."""
    return "nccl" if config.device == "cuda" else "gloo"


def stay_on_this_machine() -> None:
    """Let gloo use the loopback interface. Otherwise it looks up the machine's name, which may not resolve."""
    if "lo" in (name for _, name in socket.if_nameindex()):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


@contextmanager
def process_group(config: RootConfig, ranks: Rank) -> Generator[None]:
    """The group of all ranks while the context is open.

    A rank that waits for another longer than `TIMEOUT` raises. A rank ends with its parent process, so that no rank of
    a killed run survives.

    No model of `data_parallel` may outlive the context: it would hold the last reference to the group, and its
    destructor keeps the GIL while the group's waits for gloo's threads. If one of these needs the GIL to free a tensor,
    the process never ends (PyTorch 2.13; see issue 56297 of pytorch/pytorch).
    """
    if ranks.alone:
        yield
        return
    # `torchrun` starts each rank in a session of its own, out of reach of the supervisor's signal to its group.
    die_with(os.getppid(), signal.SIGKILL)
    stay_on_this_machine()
    gpu = None
    if config.device == "cuda":
        gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(gpu)
    backend = _backend_of(config)
    size = ranks.world_size
    dist.init_process_group(backend, timeout=TIMEOUT, rank=ranks.rank, world_size=size, device_id=gpu)
    yield
    gc.collect()  # models that are part of a cycle
    # Not after an error: the other ranks may be gone, and the process ends anyway.
    dist.destroy_process_group()


def threads_of(config: RootConfig, ranks: Rank) -> int | None:
    """The threads of a rank: the config's number, or a share of the cores; None (PyTorch chooses) for a single rank."""
    if config.scale.threads is not None:
        return config.scale.threads
    if ranks.alone:
        return None
    return max(1, cpu_count() // ranks.world_size)


def data_parallel(model: nn.Module, config: RootConfig, ranks: Rank) -> nn.Module:
    """The model, wrapped so that its gradients are averaged over the ranks; a single rank gets the model itself."""
    if ranks.alone:
        return model
    settings = config.distributed
    wrapped = DistributedDataParallel(
        model,
        device_ids=[torch.cuda.current_device()] if config.device == "cuda" else None,
        bucket_cap_mb=settings.bucket_cap_mb,
        gradient_as_bucket_view=settings.gradient_as_bucket_view,
        static_graph=settings.static_graph,
    )
    if settings.comm_hook is not None:
        wrapped.register_comm_hook(None, _HOOKS[settings.comm_hook])
    return wrapped


def _bf16(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """PyTorch's own hook under another name: PyTorch rejects its name without NCCL, although gloo supports it."""
    return default_hooks.bf16_compress_hook(state, bucket)


_HOOKS: Final = {"bf16": _bf16, "fp16": default_hooks.fp16_compress_hook}


def barrier(ranks: Rank) -> None:
    """Wait until every rank is here."""
    if not ranks.alone:
        dist.barrier()


def communication(model: nn.Module, device: torch.device, config: RootConfig, ranks: Rank) -> Communication:
    """Measure the bandwidth between the ranks, and count the bytes to reduce. Every rank must call this."""
    reduced = [p for p in model.parameters() if p.requires_grad]
    parameters = sum(p.numel() for p in reduced)
    parameter_bytes = sum(p.nbytes for p in reduced)
    bus = _bus_bytes_per_s(device, ranks, max(4, min(parameter_bytes, _MOST_BYTES) // 4 * 4))
    n = ranks.world_size
    return Communication(
        world_size=n,
        backend=_backend_of(config),
        parameters=parameters,
        parameter_bytes=parameter_bytes,
        bucket_bytes=bucket_bytes(model),
        bus_bytes_per_s=bus,
        expected_ns=round(parameter_bytes * _ring_share(n) / bus * 1e9),
        simplified_ns=round(parameters * _SIMPLIFIED_BYTES / bus * 1e9),
    )


def _ring_share(ranks: int) -> float:
    """How often a rank sends each byte in an all-reduce of the least traffic: 2(n-1)/n."""
    return 2 * (ranks - 1) / ranks


def bucket_bytes(model: Any) -> tuple[int, ...] | None:
    """Bytes of each bucket that PyTorch reduces, in its order; None if it does not log them."""
    if not has("torch.nn.parallel.DistributedDataParallel._get_ddp_logging_data"):
        return None
    logged = model._get_ddp_logging_data()  # private, but the only source
    text = logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes")
    return tuple(map(int, text.split(","))) if text else None


def _bus_bytes_per_s(device: torch.device, ranks: Rank, size: int) -> float:
    """The bandwidth in bytes per second, from all-reduces of `size` bytes (float32), each from a common start."""
    message = torch.zeros(size // 4, dtype=torch.float32, device=device)
    clock = current_clock()
    times_ns = []
    for _ in range(_WARMUP + _REPEATS):
        barrier(ranks)
        clock.synchronize()
        start_ns = time.perf_counter_ns()
        dist.all_reduce(message)
        clock.synchronize()
        times_ns.append(time.perf_counter_ns() - start_ns)
    measured = torch.tensor(times_ns[_WARMUP:], dtype=torch.int64, device=device)
    by_rank = [torch.empty_like(measured) for _ in range(ranks.world_size)]
    dist.all_gather(by_rank, measured)
    slowest_ns = np.array([times.tolist() for times in by_rank]).max(axis=0)
    median_ns = max(1, round(float(np.median(slowest_ns))))
    return size * _ring_share(ranks.world_size) / median_ns * 1e9
