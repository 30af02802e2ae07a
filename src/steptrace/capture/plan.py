"""What a capture is to record, and what is said of it: the records that job and command line exchange as JSON."""

import itertools
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from steptrace.errors import CaptureError


@dataclass(frozen=True)
class Settings:
    """What a capture records unless the command line asks for something else.

    Args:
        steps: steps recorded.
        warmup: steps before them with the profiler on and their events discarded: the first ones under it are slow.
        stacks: Python frames; without them a synchronisation has no source line.
        shapes: sizes and types of the operators' tensors.
        memory: allocations and releases.
    """

    steps: int = 3
    warmup: int = 2
    stacks: bool = True
    shapes: bool = True
    memory: bool = True

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise CaptureError(f"{self.steps} steps cannot be recorded", where="steps", expected="1 or more")
        if self.warmup < 0:
            raise CaptureError(f"{self.warmup} warm-up steps are impossible", where="warmup", expected="0 or more")


@dataclass(frozen=True)
class Process:
    """A process that can be captured (process.json in its control folder)."""

    pid: int
    born: int | None
    host: str
    rank: int | None
    world_size: int | None
    local_rank: int | None
    job: str | None
    script: str
    command: tuple[str, ...]
    since: float
    folder: str
    settings: Settings
    shared: bool


#: Who asks: `steptrace capture`, which is answered, or a signal, which cannot be.
BY_COMMAND: Final = "command"
BY_SIGNAL: Final = "signal"


@dataclass(frozen=True)
class Request:
    """What is asked of a process (request-ID.json). `start` is the step to begin the warm-up at; None is the next."""

    id: str
    folder: str
    settings: Settings
    start: int | None = None
    asked_by: str = BY_COMMAND


#: What can be said of a request. The last four are final.
STATES = ("waiting", "recording", "recorded", "partial", "refused", "failed")
FINAL = frozenset(STATES[2:])


@dataclass(frozen=True)
class Answer:
    """What became of a request (answer-ID.json)."""

    id: str
    state: str
    message: str
    trace: str | None = None


@dataclass(frozen=True)
class Span:
    """The steps in a trace, counted from 0 as the training's calls of `Capture.step` end them."""

    first: int | None
    last: int | None
    count: int


@dataclass(frozen=True)
class Record:
    """What lies beside a trace (capture.json): what was captured where, or why nothing was."""

    schema_version: int
    state: str
    message: str
    trace: str | None
    trace_bytes: int | None
    steps: Span
    asked: Settings
    asked_by: str
    started_at: str
    ended_at: str
    pid: int
    host: str
    rank: int | None
    world_size: int | None
    command: tuple[str, ...]
    device: str | None
    python: str
    torch: str | None
    steptrace: str


def file_names(rank: int | None, world_size: int | None) -> tuple[str, str]:
    """Names of a process's trace and of the record beside it: `rank1.trace.json.gz` in a job of several ranks."""
    prefix = "" if rank is None or world_size in (None, 1) else f"rank{rank}."
    return f"{prefix}trace.json.gz", f"{prefix}capture.json"


def new_folder(within: Path, pid: int) -> Path:
    """A folder for one capture of a process that does not exist yet, named by the time and the process."""
    stamp = f"{datetime.now():%Y%m%d-%H%M%S}-pid{pid}"
    names = itertools.chain([stamp], (f"{stamp}-{number}" for number in itertools.count(2)))
    return next(folder for name in names if not (folder := within / name).exists())
