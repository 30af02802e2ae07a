"""What the processes of a started program tell its launcher, as the launcher reads it.

The program's side is `steptrace.launch.events`; a test holds the two against each other.
"""

import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from steptrace.documents.base import field
from steptrace.files import open_file


class _Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="event"):
    """A line of the file; its class's name stands under `event`."""

    pid: Annotated[int, field("The process that wrote it.")]


class Started(_Event, frozen=True, kw_only=True, tag=True):
    """A Python process that has the probe on its path. Processes that import PyTorch are among them."""


class ProbeFailed(_Event, frozen=True, kw_only=True, tag=True):
    """The probe could not be put into a process."""

    error: Annotated[str, field("The traceback, or the reason.")]


class ModuleMissing(_Event, frozen=True, kw_only=True, tag=True):
    """A process ended because its interpreter lacks a module."""

    module: Annotated[str, field("Name of the module.")]
    python: Annotated[str, field("Path of the interpreter.")]


class TorchMissing(_Event, frozen=True, kw_only=True, tag=True):
    """A process has ended whose interpreter has no PyTorch."""

    python: Annotated[str, field("Path of the interpreter.")]


class Stepped(_Event, frozen=True, kw_only=True, tag=True):
    """A process has made its first step."""


class Progressed(_Event, frozen=True, kw_only=True, tag=True):
    """How far rank 0 is in a phase."""

    phase: Annotated[str, field("Name of the phase.")]
    done: Annotated[int, field("Finished steps of the phase.")]
    total: Annotated[int | None, field("Steps that it has; null as long as that is not known.")]


class RecordWritten(_Event, frozen=True, kw_only=True, tag=True):
    """A rank has written its record (`documents.probe.RankRecord`)."""

    rank: Annotated[int, field("Number of the rank.")]
    world_size: Annotated[int, field("How many ranks there are.")]
    state: Annotated[Literal["partial", "complete", "failed"], field("How far the measurement got.")]


class Fault(_Event, frozen=True, kw_only=True, tag=True):
    """A failure that is not the program's own: a bug in steptrace, or a limit of it."""

    report: Annotated[str, field("What to tell the user.")]


class GpuMissing(_Event, frozen=True, kw_only=True, tag=True):
    """The error that ended the program is about a GPU that is not there."""


class FailedOnVirtualGpu(_Event, frozen=True, kw_only=True, tag=True):
    """An error ended the program that a prediction may have caused."""


class MeasurementOver(_Event, frozen=True, kw_only=True, tag=True):
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

_DECODER = msgspec.json.Decoder(Event)


class EventsFile:
    """The events of a program in the order in which they were written, read while it writes them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begun = 0
        #: What has been read of a line whose end is not there yet.
        self._rest = b""

    def new(self) -> list[Event]:
        """The events since the last call.

        A last line that is not whole yet is left for the next call. A line that is no event is skipped: a process was
        killed, or the disk was full, while it was written.
        """
        try:
            with open_file(self._path) as file:
                if os.fstat(file.fileno()).st_size < self._begun:  # removed by a cleaner, and begun anew by a process
                    self._begun = 0
                    self._rest = b""
                file.seek(self._begun)
                written = file.read()
        except OSError:  # not there yet, or removed by a cleaner of temporary files
            return []
        self._begun += len(written)
        *lines, self._rest = (self._rest + written).split(b"\n")
        events: list[Event] = []
        for line in filter(None, lines):
            try:
                events.append(_DECODER.decode(line))
            except (ValueError, RecursionError):
                continue
        return events
