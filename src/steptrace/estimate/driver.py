"""What PyTorch reads of a named GPU from its driver, for programs that ask a GPU that is not there (driver.toml)."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from steptrace.estimate.gpus import Gpu, shipped

#: The GPU of a prediction for which none is named.
USUAL: Final = "H100"
#: Capabilities of a GPU that a person has added to the named ones: of the latest with bfloat16, and without.
_WITH_BF16, _WITHOUT_BF16 = "H100", "T4"
#: The first capability with bfloat16, TF32 and flash attention.
_AMPERE: Final = (8, 0)
#: The first capability of the CUDA builds of PyTorch that are published for CUDA 13.
_TURING: Final = (7, 5)


@dataclass(frozen=True)
class DriverFacts:
    """What the driver says of a GPU.

    Attributes:
        gpu: steptrace's name of it.
        name: the driver's.
        capability: major and minor number.
        memory_bytes: all of its memory.
        sms: multiprocessors.
        threads: the most per multiprocessor.
        shared_bytes: the most shared memory that a block may ask for.
        l2_bytes: the size of its L2 cache.
    """

    gpu: str
    name: str
    capability: tuple[int, int]
    memory_bytes: int
    sms: int
    threads: int
    shared_bytes: int
    l2_bytes: int

    def __post_init__(self) -> None:
        """Take a list for the capability, as JSON has it."""
        object.__setattr__(self, "capability", tuple(self.capability))

    @property
    def is_ampere(self) -> bool:
        """Whether it has bfloat16, TF32 and flash attention: Ampere or later."""
        return self.capability >= _AMPERE

    @property
    def cuda(self) -> str:
        """The version of CUDA of the build of PyTorch that is published for it."""
        return "13.0" if self.capability >= _TURING else "12.6"


def driver_facts(gpu: Gpu) -> DriverFacts:
    """What the driver says of a GPU.

    One that is not in driver.toml, since a person has added it, has its own name and memory; the rest is that of an
    H100, or of a T4 if it has no bfloat16.
    """
    known = _table()
    row = known.get(gpu.name) or {**known[_WITH_BF16 if gpu.bf16 else _WITHOUT_BF16], "name": gpu.name}
    major, minor = row["capability"]
    return DriverFacts(
        gpu=gpu.name,
        name=row["name"],
        capability=(major, minor),
        memory_bytes=int(gpu.memory_bytes),
        sms=row["sms"],
        threads=row["threads"],
        shared_bytes=row["shared_kb"] * 2**10,
        l2_bytes=row["l2_mb"] * 2**20,
    )


def usual_facts() -> DriverFacts:
    """Those of the GPU of a prediction for which none is named; no file of the working directory is read."""
    return driver_facts(shipped()[USUAL])


@cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("driver.toml").read_text(encoding="utf-8"))
