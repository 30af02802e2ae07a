"""What a GPU's driver would report, for programs that run on a virtual GPU (driver.toml)."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from steptrace.estimate.gpus import Gpu, shipped

#: The GPU of a prediction that names none.
USUAL: Final = "H100"
#: GPUs whose facts are used for a GPU that a user has added: the one with bfloat16, and the one without.
_WITH_BF16, _WITHOUT_BF16 = "H100", "T4"
#: The first capability with bfloat16, TF32 and flash attention.
_AMPERE: Final = (8, 0)
#: Capabilities whose multiprocessors have 64 units of float32 arithmetic. All others have 128.
_OF_64_UNITS: Final = ((7, 0), (7, 5), (8, 0))
#: The first capability of the CUDA builds of PyTorch that are published for CUDA 13.
_TURING: Final = (7, 5)


@dataclass(frozen=True)
class DriverFacts:
    """What the driver reports about a GPU.

    Attributes:
        gpu: steptrace's name of the GPU.
        name: the driver's name of the GPU.
        capability: major and minor number of its compute capability.
        memory_bytes: its total memory.
        sms: number of multiprocessors.
        threads: the most threads per multiprocessor.
        shared_bytes: the most shared memory that a block may ask for.
        l2_bytes: the size of its L2 cache.
        clock_khz: the highest clock of its multiprocessors, at which it has the data sheet's float32 rate.
        memory_clock_khz: the clock of its memory, which moves data twice a clock.
        bus_bits: the width of its memory bus.
    """

    gpu: str
    name: str
    capability: tuple[int, int]
    memory_bytes: int
    sms: int
    threads: int
    shared_bytes: int
    l2_bytes: int
    clock_khz: int
    memory_clock_khz: int
    bus_bits: int

    def __post_init__(self) -> None:
        """Make the capability a tuple, since JSON has it as a list."""
        object.__setattr__(self, "capability", tuple(self.capability))

    @property
    def is_ampere(self) -> bool:
        """Whether it has bfloat16, TF32 and flash attention: Ampere or later."""
        return self.capability >= _AMPERE

    @property
    def warp(self) -> int:
        """Threads that execute an instruction together: 32, of AMD's GPUs 64."""
        return 64 if self.name.startswith("AMD") else 32

    @property
    def cuda(self) -> str:
        """The CUDA version of the PyTorch build that is published for this GPU."""
        return "13.0" if self.capability >= _TURING else "12.6"


def driver_facts(gpu: Gpu) -> DriverFacts:
    """What the driver reports about a GPU.

    A GPU that a user has added is not in driver.toml. It keeps its name and memory; all other facts are those of an
    H100, or of a T4 if it has no bfloat16.
    """
    known = _table()
    row = known.get(gpu.name) or {**known[_WITH_BF16 if gpu.bf16 else _WITHOUT_BF16], "name": gpu.name}
    major, minor = row["capability"]
    # A unit multiplies and adds in one clock.
    flop_per_clock = 2 * (64 if (major, minor) in _OF_64_UNITS else 128) * row["sms"]
    bytes_per_clock = 2 * row["bus_bits"] / 8
    return DriverFacts(
        gpu=gpu.name,
        name=row["name"],
        capability=(major, minor),
        memory_bytes=int(gpu.memory_bytes),
        sms=row["sms"],
        threads=row["threads"],
        shared_bytes=row["shared_kb"] * 2**10,
        l2_bytes=row["l2_mb"] * 2**20,
        clock_khz=round(gpu.fp32_tflops * 1e9 / flop_per_clock),
        memory_clock_khz=round(gpu.bandwidth_gbs * 1e6 / bytes_per_clock),
        bus_bits=row["bus_bits"],
    )


def usual_facts() -> DriverFacts:
    """The driver's facts of `USUAL`, the GPU of a prediction that names none. Reads no file of the user's."""
    return driver_facts(shipped()[USUAL])


@cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("driver.toml").read_text(encoding="utf-8"))
