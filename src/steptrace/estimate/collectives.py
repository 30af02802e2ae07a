"""How long a collective between the GPUs of one machine takes: NCCL's published times, or the link's data sheet.

collectives.toml holds microseconds by GPU, operation, number of GPUs and message size. bench/estimate_constants.py
takes them from aiconfigurator's tables. For any other GPU the times of a measured GPU are scaled by the ratio of their
link bandwidths. The spread is then wide, since the wiring of a machine matters more than its GPUs.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from steptrace.documents.estimate import OperatorCalls
from steptrace.estimate.gpus import Gpu, gpu_named
from steptrace.estimate.kernel_classes import base_name
from steptrace.estimate.queue import Collective
from steptrace.estimate.times import Draws, normal
from steptrace.estimate.work import tensor_bytes

FILE: Final = Path(__file__).with_name("collectives.toml")
#: Standard deviation of the logarithm of a time: measured on this GPU, or scaled from another over NVLink or PCIe.
_SPREAD: Final = {"measured": 0.15, "nvlink": 0.35, "pcie": 0.6}
#: By link: the GPU whose times are scaled for a GPU without measurements.
_LIKE: Final = {"nvlink": "H100", "pcie": "RTX-PRO-6000"}
#: Parts of operators' names, and the operation whose table is used. Operations without a table use a similar one.
_OPERATIONS: Final = (
    ("reduce_scatter", "reduce_scatter"), ("allreduce", "all_reduce"), ("all_reduce", "all_reduce"),
    ("allgather", "all_gather"), ("all_gather", "all_gather"), ("alltoall", "all_to_all"), ("all_to_all", "all_to_all"),
    ("broadcast", "all_gather"), ("scatter", "all_gather"), ("gather", "all_gather"), ("reduce", "reduce_scatter"),
)  # fmt: skip
#: Operators that send no data.
_WAITS: Final = re.compile(r"wait_tensor|barrier")


@dataclass(frozen=True)
class Table:
    """Microseconds of one operation by message size in bytes, both increasing."""

    sizes: tuple[float, ...]
    microseconds: tuple[float, ...]

    def seconds(self, size: float) -> float:
        """Seconds for a message of `size` bytes: interpolated in log-log space; beyond the last size in proportion."""
        if size >= self.sizes[-1]:
            return self.microseconds[-1] / 1e6 * size / self.sizes[-1]
        at = np.interp(np.log(max(size, self.sizes[0])), np.log(self.sizes), np.log(self.microseconds))
        return float(np.exp(at)) / 1e6


def collective_of(call: OperatorCalls) -> Collective | None:
    """The collective of an operator; None if it only waits or sends nothing."""
    name = base_name(call.name)
    operation = next((what for part, what in _OPERATIONS if part in name), None)
    if operation is None or _WAITS.search(name) or not call.inputs:
        return None
    sizes = [tensor_bytes(tensor) for tensor in call.inputs]
    # The inputs hold the gathered tensor of all ranks, and after it the part of this rank, which is counted already.
    sent = sum(sizes) if operation == "all_reduce" or len(sizes) == 1 else sum(sizes) - min(sizes)
    received = sum(map(tensor_bytes, call.outputs))
    return Collective(
        operation=operation,
        bytes=float(max(sent, received if operation == "all_gather" else 0)),
        # All-gathers mostly send parameters, which no kernel of this step has changed.
        after_kernels=operation != "all_gather",
    )


def bus_share(operation: str, devices: int) -> float:
    """Bytes that cross a rank's link for each byte of the message."""
    return (2 if operation == "all_reduce" else 1) * (devices - 1) / devices


def expected_seconds(operation: str, size: float, devices: int, gpu: Gpu) -> tuple[float, str]:
    """Seconds of a collective, and their source: `measured`, or the link (`nvlink`, `pcie`) that they are scaled by.

    Another number of GPUs takes the times of the nearest number that was measured, by what crosses a rank's link.
    """
    link = "pcie" if gpu.link_gbs is None else "nvlink"
    measured = _measured(gpu.name, operation)
    is_inside = bool(measured) and min(measured) <= devices <= max(measured)
    ratio = 1.0
    if not measured:
        like = gpu_named(_LIKE[link])
        ratio = like.pcie_gbs / gpu.pcie_gbs if gpu.link_gbs is None else (like.link_gbs or 1.0) / gpu.link_gbs
        measured = _measured(like.name, operation)
    if not measured:
        raise KeyError(operation)
    nearest = min(measured, key=lambda count: (abs(count - devices), -count))
    table = measured[nearest]
    ratio *= bus_share(operation, devices) / bus_share(operation, nearest)
    smallest = table.microseconds[0] / 1e6
    return smallest + (table.seconds(size) - smallest) * ratio, "measured" if is_inside else link


def collective_seconds(collective: Collective, devices: int, gpu: Gpu) -> Draws:
    """Seconds of a collective in each draw."""
    seconds, known = expected_seconds(collective.operation, collective.bytes, devices, gpu)
    return np.asarray(seconds * np.exp(_SPREAD[known] * normal("collectives")))


def _measured(gpu: str, operation: str) -> Mapping[int, Table]:
    """The tables of a collective on a GPU, by the number of GPUs; empty where none was measured."""
    return {count: table for (name, what, count), table in _tables().items() if (name, what) == (gpu, operation)}


@cache
def _tables() -> Mapping[tuple[str, str, int], Table]:
    content = tomllib.loads(FILE.read_text(encoding="utf-8"))
    sizes = tuple(float(size) for size in content["bytes"])
    return {
        (row["gpu"], row["operation"], row["gpus"]): Table(sizes, tuple(row["microseconds"]))
        for row in content["times"]
    }
