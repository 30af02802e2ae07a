"""Measures the bandwidth between ranks: separate all-reduces of as many bytes as the gradients have.

Measured after the last step, outside the profiled window. The bus bandwidth gives the expected time of the gradients'
all-reduce; a step with a longer one waits for something else.
"""

import time
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from omegaconf import DictConfig
from torch.nn.parallel import DistributedDataParallel

from steptrace.documents.run import Communication
from steptrace.train.distributed import backend_of, barrier, from_every_rank
from steptrace.train.loop import Training, synchronize

#: The most bytes of one message.
_MOST_BYTES: Final = 1 << 28
_WARMUP: Final = 2
_REPEATS: Final = 7
#: Bytes per parameter in the source of the simplified formula: float32, also under mixed precision.
_SIMPLIFIED_BYTES: Final = 4


def communication(training: Training, config: DictConfig) -> Communication:
    """Measure the bandwidth between the ranks, and count the bytes to reduce. Every rank must call this."""
    reduced = [p for p in training.model.parameters() if p.requires_grad]
    parameters, parameter_bytes = sum(p.numel() for p in reduced), sum(p.nbytes for p in reduced)
    bus = _bus_bytes_per_s(training, max(4, min(parameter_bytes, _MOST_BYTES) // 4 * 4))
    n = training.ranks.world_size
    return Communication(
        world_size=n,
        backend=backend_of(config),
        parameters=parameters,
        parameter_bytes=parameter_bytes,
        bucket_bytes=bucket_bytes(training.model),
        bus_bytes_per_s=bus,
        expected_ns=round(parameter_bytes * ring_share(n) / bus * 1e9),
        simplified_ns=round(parameters * _SIMPLIFIED_BYTES / bus * 1e9),
    )


def ring_share(ranks: int) -> float:
    """Fewest times that a rank sends each byte of an all-reduce: 2(n-1)/n."""
    return 2 * (ranks - 1) / ranks


def bucket_bytes(model: Any) -> tuple[int, ...] | None:
    """Bytes of each bucket that PyTorch reduces, in its order; None if it does not log them."""
    if not isinstance(model, DistributedDataParallel):
        return None
    try:  # private, but the only source
        logged = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        text = logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or ""
        return tuple(int(size) for size in str(text).split(",")) if text else None
    except (AttributeError, RuntimeError, ValueError):
        return None


def _bus_bytes_per_s(training: Training, size: int) -> float:
    """Reduce a message of `size` bytes (float32) several times, one at a time, from a common start."""
    ranks, device = training.ranks, training.device
    message = torch.zeros(size // 4, dtype=torch.float32, device=device)
    times_ns = []
    for _ in range(_WARMUP + _REPEATS):
        barrier(ranks)
        synchronize(device)
        start_ns = time.perf_counter_ns()
        dist.all_reduce(message)
        synchronize(device)
        times_ns.append(time.perf_counter_ns() - start_ns)
    by_rank = np.array(from_every_rank(times_ns[_WARMUP:], ranks))
    median_ns = max(1, round(float(np.median(by_rank.max(axis=0)))))
    return size * ring_share(ranks.world_size) / median_ns * 1e9
