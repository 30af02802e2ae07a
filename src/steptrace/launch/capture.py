"""Captures of a running program: `steptrace capture` asks for a trace, and the program records its next steps.

They meet in the control folder. Imports no torch before a recording begins.

    ROOT/                   0700; see `_control_folder`
      PID/                  of a program that `steptrace run --capture` has started
        process.json        who it is, and its steps so far; written once a second
        request.json        written by `steptrace capture`, removed by the program that takes it

The reply is the record beside the trace (capture.json). No signal is sent: it would end a program without a handler.
"""

import atexit
import json
import logging
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Final

from steptrace.engine.recording import Before, Recording, Request, Settings, check_types
from steptrace.errors import CaptureError
from steptrace.files import private_folder, user_folder, write_bytes
from steptrace.rank import this_rank

_LOG: Final = logging.getLogger("steptrace.capture")
#: Seconds between two looks into the control folder.
_LOOK_NS: Final = 1_000_000_000
#: Seconds to wait after an error.
_RETRY_NS: Final = 60_000_000_000
#: How many of the latest steps' times are kept for the record.
_RECENT: Final = 64


def _control_folder() -> Path:
    """The folder of all programs of this user that can be captured."""
    return private_folder(user_folder() / "capture")


def start_of(pid: int | str) -> str | None:
    """A process's start time in clock ticks since boot; None if there is no such process.

    Process numbers are reused; with the start time they are unique.
    """
    try:
        # Field 3 follows the name in brackets, which may hold anything; the start time is field 22.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


@dataclass
class Process:
    """A program that can be captured: `since` is its start in Unix seconds, `folder` the one for its traces."""

    pid: int
    start: str
    script: str
    since: float
    folder: str
    rank: int = 0
    world_size: int = 1
    steps: int = 0
    recording: bool = False

    @property
    def path(self) -> Path:
        """Its control folder."""
        return _control_folder() / str(self.pid)

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"process {self.pid}" + ("" if self.world_size == 1 else f", rank {self.rank}")

    def __post_init__(self) -> None:
        check_types(self)

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return start_of(self.pid) == self.start

    def is_listening(self) -> bool:
        """Whether it still runs, and still looks for requests."""
        return self.is_alive() and (self.path / "process.json").exists()

    def publish(self) -> None:
        """Write its state, with its steps so far, for other processes."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        write_bytes(self.path / "process.json", json.dumps(asdict(self)).encode())

    def post(self, request: Request) -> None:
        """Leave a request for it."""
        write_bytes(self.path / "request.json", json.dumps(asdict(request)).encode())

    def take(self) -> Request | None:
        """Remove and return the waiting request; None without a valid one.

        Whoever wrote one that is not valid is told, if it names a folder for the answer.
        """
        file = self.path / "request.json"
        content = _read(file)
        file.unlink(missing_ok=True)
        try:
            return _request(content) if content else None
        except CaptureError as error:
            _LOG.warning("`steptrace capture`: %s", error)
            with suppress(Exception):
                Recording(Request(content["id"], content["folder"], Settings())).close(error.what)
            return None


def processes() -> list[Process]:
    """The programs that can be captured, by process number; removes the folders of ended ones."""
    running = []
    for path in _control_folder().iterdir():
        with suppress(TypeError, CaptureError):
            process = Process(**_read(path / "process.json"))
            if process.is_alive():
                running.append(process)
                continue
        if start_of(path.name) is None:
            shutil.rmtree(path, ignore_errors=True)
    return sorted(running, key=lambda process: process.pid)


def _request(content: Mapping[str, Any]) -> Request:
    """The request that a file holds.

    Raises:
        CaptureError: a key is missing or unknown, or a value has the wrong type.
    """
    try:
        return Request(**{**content, "settings": Settings(**content["settings"])})
    except (TypeError, KeyError) as error:
        raise CaptureError(f"the request is not valid ({error})") from error
    except CaptureError as error:
        raise CaptureError(f"the request is not valid: {error}") from error


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty if there is none."""
    with suppress(OSError, ValueError):
        content = json.loads(path.read_bytes())
        return content if isinstance(content, dict) else {}
    return {}


class Listener:
    """Makes this process capturable, and records the steps that `steptrace capture` asks for.

    Errors never reach the program: they are logged, and written into the capture's record.

    Args:
        folder: where traces go unless the command line names a folder; each capture gets a folder of its own there.
    """

    def __init__(self, folder: str) -> None:
        script = " ".join(sys.argv) if sys.argv and sys.argv[0] else Path(sys.executable).name
        pid = os.getpid()
        self._process = Process(pid, start_of(pid) or "", script, time.time(), folder, **asdict(this_rank()))
        self._look_at = 0
        self._ends: deque[int] = deque(maxlen=_RECENT + 1)
        self._recording: Recording | None = None
        atexit.register(self.close)

    @property
    def recording(self) -> bool:
        """Whether a capture is under way."""
        return self._recording is not None

    def step(self) -> None:
        """To be called at the end of each step. Almost free without a capture; never raises."""
        now = perf_counter_ns()
        self._ends.append(now)
        self._process.steps += 1
        if self._recording is not None:
            self._recording.step(self._process.steps)
            if self._recording.done:
                self._recording, self._look_at = None, 0
                self._ends.clear()  # the profiler has slowed these steps down
        if now >= self._look_at:
            self._look_at = now + _LOOK_NS
            self._look()

    def _look(self) -> None:
        try:
            if request := self._process.take():
                self._accept(request)
            self._process.recording = self.recording
            self._process.publish()
        except Exception as error:  # never a reason for the program to fail
            _LOG.warning("`steptrace capture` cannot reach this process: %s; next try in a minute", error)
            self._look_at += _RETRY_NS

    def _accept(self, request: Request) -> None:
        recording = Recording(request, lambda: Before([end - start for start, end in pairwise(self._ends)]))
        if self._recording is not None:
            recording.close("a capture is under way in this process")
            return
        recording.step(self._process.steps)
        self._recording = None if recording.done else recording

    def close(self) -> None:
        """End a running capture with the steps recorded so far, and leave the control folder."""
        if os.getpid() != self._process.pid:  # a forked child
            return
        if self._recording is not None:
            self._recording.close()
        with suppress(Exception):
            if request := self._process.take():
                Recording(request).close("the training has ended")
        with suppress(Exception):
            shutil.rmtree(self._process.path)
