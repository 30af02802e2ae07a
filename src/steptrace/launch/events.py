"""Inside the program: reports events to the launcher, in one file to which every process of the program appends.

Each event is a line of JSON: the fields of its class here, and the class's name under `event`. The launcher's side,
with the meaning of each field, is `steptrace.documents.events`; a test holds the two against each other. Needs the
standard library only. `inject/sitecustomize.py` runs before steptrace can be imported, so it writes its own four
events (`Started`, `ProbeFailed`, `ModuleMissing`, `TorchMissing`) without this module.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from steptrace.launch.settings import EVENTS


@dataclass(frozen=True)
class Started:
    """A Python process has started with the probe on its path."""


@dataclass(frozen=True)
class ProbeFailed:
    """The probe could not be put into a process."""

    error: str


@dataclass(frozen=True)
class ModuleMissing:
    """A process ended because its interpreter lacks a module."""

    module: str
    python: str


@dataclass(frozen=True)
class TorchMissing:
    """A process has ended whose interpreter has no PyTorch."""

    python: str


@dataclass(frozen=True)
class Stepped:
    """A process has made its first step."""


@dataclass(frozen=True)
class Progressed:
    """How far rank 0 is in a phase; `total` is None as long as its number of steps is not known."""

    phase: str
    done: int
    total: int | None


@dataclass(frozen=True)
class RecordWritten:
    """A rank has written its record."""

    rank: int
    world_size: int
    state: str


@dataclass(frozen=True)
class Fault:
    """The program failed by a bug or a limit of steptrace."""

    report: str


@dataclass(frozen=True)
class GpuMissing:
    """The error that ended the program is about a missing GPU."""


@dataclass(frozen=True)
class FailedOnVirtualGpu:
    """The program ended by an error that the prediction may have caused."""


@dataclass(frozen=True)
class MeasurementOver:
    """The measurement is over: processes that start later get no probe. The launcher writes it."""


Event = (
    Started
    | ProbeFailed
    | ModuleMissing
    | TorchMissing
    | Stepped
    | Progressed
    | RecordWritten
    | Fault
    | GpuMissing
    | FailedOnVirtualGpu
    | MeasurementOver
)


def append(folder: Path, event: Event) -> None:
    """Append an event to the file in `folder`, by one system call, so that the lines of several processes do not mix.

    The line has a line break before it, too, since a killed process or a full disk may have left half a line there.

    Raises:
        OSError: the folder is gone, which means that the launcher has ended; or it cannot be written to.
    """
    line = json.dumps({"event": type(event).__name__, "pid": os.getpid(), **asdict(event)}, ensure_ascii=False)
    file = os.open(folder / EVENTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"\n{line}\n".encode(errors="replace"))
    finally:
        os.close(file)
