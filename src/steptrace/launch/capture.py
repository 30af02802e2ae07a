"""Captures of a running program: `steptrace capture` asks for a trace, and the program records its next steps.

They meet in the control folder. Imports no torch before a recording begins.

    ROOT/                   0700; see `_control_folder`
      PID/                  of a program that `steptrace run --capture` has started
        process.json        its id, command and rank, and its steps so far; written once a second
        request.json        written by `steptrace capture`, removed by the program that takes it

All ranks of a job, on several hosts too, meet in the folder for their traces, which the hosts share:

    FOLDER/all_ranks.json   written by `steptrace capture --all-ranks`; each rank of the job starts at the same step

The reply is the record beside the trace (capture.json). No signal is sent, since it would end a program that has no
handler for it.
"""

import atexit
import json
import logging
import math
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Final

from steptrace.documents.compilations import Compilations
from steptrace.engine.recording import Before, Recording, RecordingSettings, Request, check_types
from steptrace.engine.signals import pass_on
from steptrace.errors import CaptureError
from steptrace.files import decode_json, private_folder, read_bytes, user_folder, write_bytes
from steptrace.rank import this_rank

_LOG: Final = logging.getLogger("steptrace.capture")
#: Seconds between two looks into the control folder.
_LOOK_NS: Final = 1_000_000_000
#: Seconds to wait after an error.
_RETRY_NS: Final = 60_000_000_000
#: The number of latest step times that are kept for the record.
_RECENT: Final = 64
#: The request to all ranks of a job, in the folder for their traces.
ALL_RANKS_FILE: Final = "all_ranks.json"
#: The variables that tell the jobs of one user apart. Launchers set them to the same values for all ranks of a job.
_JOB_VARIABLES: Final = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "WORLD_SIZE")
#: Seconds from a request to the step at which all ranks start. Each rank looks for requests once a second.
_LEAD_S: Final = 5.0


def job_of(environment: Mapping[str, str]) -> str:
    """A name that the ranks of one job share and other jobs do not have, from the launcher's environment variables."""
    return " ".join(environment.get(name, "") for name in _JOB_VARIABLES)


@dataclass(frozen=True)
class JobRequest:
    """A request to all ranks of a job to start a recording at the end of step `at_step`, counted from its start."""

    id: str
    folder: str
    settings: RecordingSettings
    job: str
    at_step: int

    def __post_init__(self) -> None:
        check_types(self)

    @property
    def of_rank(self) -> Request:
        """The request to one rank."""
        return Request(self.id, self.folder, self.settings)


def _control_folder() -> Path:
    """The folder in which the programs of this user that can be captured have their control folders."""
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
class ListeningProcess:
    """A program that can be captured.

    Attributes:
        pid: its process number.
        start: its start in clock ticks since boot, as `start_of` returns it.
        script: its command line.
        since: its start in Unix seconds.
        folder: the folder for its traces.
        rank: its rank.
        world_size: the number of ranks of its job.
        steps: how many steps it has made.
        recording: whether a capture is under way.
        job: the name of its job, as `job_of` returns it.
        step_s: the median of its latest step times in seconds; 0 before the second step.
    """

    pid: int
    start: str
    script: str
    since: float
    folder: str
    rank: int = 0
    world_size: int = 1
    steps: int = 0
    recording: bool = False
    job: str = ""
    step_s: float = 0.0

    @property
    def path(self) -> Path:
        """Its control folder."""
        return _control_folder() / str(self.pid)

    @property
    def name(self) -> str:
        """Its name, for messages."""
        return f"process {self.pid}" + ("" if self.world_size == 1 else f", rank {self.rank}")

    def __post_init__(self) -> None:
        check_types(self)

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return start_of(self.pid) == self.start

    def is_listening(self) -> bool:
        """Whether it still runs and looks for requests."""
        return self.is_alive() and (self.path / "process.json").exists()

    def publish(self) -> None:
        """Write its state, with its steps so far, for other processes."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        write_bytes(self.path / "process.json", json.dumps(asdict(self)).encode())

    def post(self, request: Request) -> None:
        """Leave a request for it."""
        write_bytes(self.path / "request.json", json.dumps(asdict(request)).encode())

    def post_to_all(self, request: Request) -> JobRequest:
        """Leave a request for all ranks of its job and return it. They start at a step that none has reached yet."""
        lead = math.ceil(_LEAD_S / self.step_s) if self.step_s else 1
        to_all = JobRequest(request.id, request.folder, request.settings, self.job, self.steps + lead)
        write_bytes(Path(self.folder) / ALL_RANKS_FILE, json.dumps(asdict(to_all)).encode())
        return to_all

    def job_request(self) -> JobRequest | None:
        """The latest request to all ranks of its job; None if there is no valid one by the same user."""
        file = Path(self.folder) / ALL_RANKS_FILE
        with suppress(OSError, TypeError, KeyError, CaptureError):
            if file.stat().st_uid != os.getuid():
                return None
            content = _read(file)
            request = JobRequest(**{**content, "settings": RecordingSettings(**content["settings"])})
            return request if request.job == self.job else None
        return None

    def withdraw_from_all(self, request: Request) -> None:
        """Remove a request to all ranks of its job, unless somebody has replaced it by another one."""
        file = Path(self.folder) / ALL_RANKS_FILE
        if _read(file).get("id") == request.id:
            file.unlink(missing_ok=True)

    def has_passed(self, step: int) -> bool:
        """Whether it said last that it has made more steps, and is not recording."""
        with suppress(TypeError, CaptureError):
            latest = ListeningProcess(**_read(self.path / "process.json"))
            return latest.steps > step and not latest.recording
        return False

    def take(self) -> Request | None:
        """Remove the waiting request and return it; None if there is no valid one.

        An invalid request is answered in the folder that it names, if it names one.
        """
        file = self.path / "request.json"
        content = _read(file)
        file.unlink(missing_ok=True)
        try:
            return _request(content) if content else None
        except CaptureError as error:
            _LOG.warning("`steptrace capture`: %s", error)
            with suppress(Exception):
                Recording(Request(content["id"], content["folder"], RecordingSettings())).close(error.what)
            return None


def processes() -> list[ListeningProcess]:
    """The programs that can be captured, ordered by process number. Removes the folders of programs that have ended."""
    running = []
    for path in _control_folder().iterdir():
        with suppress(TypeError, CaptureError):
            process = ListeningProcess(**_read(path / "process.json"))
            if process.is_alive():
                running.append(process)
                continue
        if start_of(path.name) is None:
            shutil.rmtree(path, ignore_errors=True)
    return sorted(running, key=lambda process: process.pid)


def _request(content: Mapping[str, Any]) -> Request:
    """The request in the content of a file.

    Raises:
        CaptureError: a key is missing or unknown, or a value has the wrong type.
    """
    try:
        return Request(**{**content, "settings": RecordingSettings(**content["settings"])})
    except (TypeError, KeyError) as error:
        raise CaptureError(f"the request is not valid ({error})") from error
    except CaptureError as error:
        raise CaptureError(f"the request is not valid: {error}") from error


def _read(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if it holds none. A named pipe is not opened: that would wait for its writer."""
    try:
        content = decode_json(read_bytes(path)) if path.is_file() else {}
    except (OSError, ValueError) as error:
        pass_on(error)
        return {}
    return content if isinstance(content, dict) else {}


class Listener:
    """Makes this process capturable, and records the steps that `steptrace capture` asks for.

    Errors never reach the program: they are logged, and written into the capture's record.

    Args:
        folder: where traces go unless the command line names a folder; each capture gets a folder of its own there.
        steps: how many steps the process has made.
        compiled: returns the code that was compiled so far, for a capture's record; None if none was.
    """

    def __init__(self, folder: str, steps: int = 0, compiled: Callable[[], Compilations | None] = lambda: None) -> None:
        self._compiled = compiled
        # A program may have put anything into the list.
        script = " ".join(map(str, sys.argv)) if sys.argv and sys.argv[0] else Path(sys.executable).name
        pid = os.getpid()
        self._process = ListeningProcess(
            pid,
            start_of(pid) or "",
            script,
            time.time(),
            folder,
            **asdict(this_rank()),
            steps=steps,
            job=job_of(os.environ),
        )
        self._to_all: JobRequest | None = None
        earlier = self._process.job_request()
        self._seen = None if earlier is None else earlier.id  # a request to an earlier start of the job
        self._look_at = 0
        self._ends: deque[int] = deque(maxlen=_RECENT + 1)
        self._recording: Recording | None = None
        atexit.register(self.close)

    @property
    def recording(self) -> bool:
        """Whether a capture is under way."""
        return self._recording is not None

    def step(self) -> None:
        """To be called at the end of each step. It takes almost no time without a capture; our errors stay inside."""
        now = perf_counter_ns()
        self._ends.append(now)
        self._process.steps += 1
        if self._recording is not None:
            self._recording.step(self._process.steps)
            if self._recording.done:
                self._recording = None
                self._look_at = 0
                self._ends.clear()  # the profiler has slowed these steps down
        if now >= self._look_at:
            self._look_at = now + _LOOK_NS
            self._look()
        if self._to_all is not None and self._process.steps >= self._to_all.at_step:
            self._start_with_all(self._to_all)

    def _look(self) -> None:
        try:
            if request := self._process.take():
                self._accept(request)
            if self._process.world_size > 1:
                self._look_for_all()
            self._process.step_s = self._latest_step_s()
            self._process.recording = self.recording
            self._process.publish()
        except Exception as error:  # the program must not fail by it
            pass_on(error)
            _LOG.warning("`steptrace capture` cannot reach this process: %s; next try in a minute", error)
            self._look_at += _RETRY_NS

    def _look_for_all(self) -> None:
        """Remember a new request to all ranks of this job; one that comes too late gets an answer and no recording."""
        request = self._process.job_request()
        if request is None or request.id == self._seen:
            return
        self._seen = request.id
        if self._process.steps > request.at_step:
            late = self._process.steps - request.at_step
            Recording(request.of_rank).close(f"the request was seen {late} steps after the one to start at")
        else:
            self._to_all = request

    def _start_with_all(self, request: JobRequest) -> None:
        self._to_all = None
        try:
            self._accept(request.of_rank)
        except Exception as error:  # the program must not fail by it
            pass_on(error)
            _LOG.warning("`steptrace capture --all-ranks`: %s", error)

    def _latest_step_s(self) -> float:
        """The median of the latest unprofiled steps, in seconds; 0 before the second one."""
        lengths = sorted(end - start for start, end in pairwise(self._ends))
        return lengths[len(lengths) // 2] / 1e9 if lengths else self._process.step_s

    def _before(self) -> Before:
        return Before([end - start for start, end in pairwise(self._ends)])

    def _accept(self, request: Request) -> None:
        recording = Recording(request, self._before, self._compiled)
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
