"""The control folder, by which `steptrace capture` finds trainings and asks them. Imports no torch.

    ROOT/                   0700; see `default_root`
      HOST.PID.TIME/        locked by the training as long as it runs
        process.json        who it is, and its steps so far; written once a second
        request-ID.json     written by `steptrace capture`, removed by whoever takes it

The answer is the record beside the trace (capture.json). No signal is sent: one would end a process without a handler.
"""

import json
import logging
import os
import shutil
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from steptrace.errors import CaptureError, SteptraceError
from steptrace.exchange import flocked, private_folder, read_own, user_folder, write_whole
from steptrace.place import Place
from steptrace.recording import Request, Settings

ROOT_VARIABLE: Final = "STEPTRACE_CAPTURE_CONTROL"
#: How far ahead of the ranks they are asked to begin: a request is seen within a second, over a network later.
_AHEAD_S: Final = 3.0
_AHEAD_OF_HOSTS_S: Final = 10.0
_POLL_S: Final = 0.05
_SEE_LIST: Final = "`steptrace capture --list` shows what can be captured"
_LOG: Final = logging.getLogger("steptrace.capture")
_Message = TypeVar("_Message")


@dataclass
class Process:
    """A process that can be captured; the latest of its `steps` took a median of `step_ns`."""

    pid: int
    place: Place
    script: str
    since: float
    folder: str
    settings: Settings
    host: str = field(default_factory=socket.gethostname)
    steps: int = 0
    step_ns: int = 0
    recording: bool = False


@dataclass
class Entry:
    """The folder of one process, and what was read there; for the process itself, what it writes there."""

    path: Path
    process: Process

    @property
    def name(self) -> str:
        """What a person calls the process."""
        rank = self.process.place.rank
        return f"process {self.process.pid}" + ("" if rank is None else f", rank {rank}")

    def publish(self) -> None:
        """Let others see the process, and how far it is."""
        # In place: a file made anew every second takes ten times as long.
        content = json.dumps(asdict(self.process)).encode()
        descriptor = os.open(self.path / "process.json", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(descriptor, os.pwrite(descriptor, content, 0))
        os.close(descriptor)

    def post(self, request: Request) -> None:
        """Ask the process."""
        write_whole(self.path / f"request-{request.id}.json", json.dumps(asdict(request)).encode())

    def take(self, only: str = "") -> list[Request]:
        """The valid ones of the requests that wait, or one of them; the files are removed."""
        found = []
        # A listing, since on a network the absence of a single file may be remembered for long.
        for path in (self.path / name for name in sorted(os.listdir(self.path))):  # noqa: PTH208
            if path.name.startswith(f"request-{only}"):
                if (request := _read(path, Request)) is not None:
                    found.append(request)
                else:
                    _LOG.warning("no capture: %s is not valid, or not from this user", path)
                path.unlink(missing_ok=True)
        return found


def default_root() -> Path:
    """The control folder unless another is named."""
    return Path(os.environ.get(ROOT_VARIABLE) or user_folder() / "capture")


def enter(root: Path, process: Process) -> tuple[Entry, int | None]:
    """Make the folder of a process; returns it, and the lock that the process has to keep open."""
    path = private_folder(root) / f"{process.host}.{process.pid}.{time.time_ns()}"
    new = Entry(root / f".{path.name}", process)
    new.path.mkdir(mode=0o700)
    lock = None
    with suppress(OSError):  # a file system without locks
        lock = _lock(new.path)  # before it is seen: an unlocked one is that of an ended process
    new.publish()
    return Entry(new.path.rename(path), process), lock


def entries(root: Path) -> list[Entry]:
    """The processes that can be captured, by job and rank; what ended ones have left is removed."""
    found = []
    for path in private_folder(root).glob("[!.]*.*.*"):
        if not is_alive(path):
            shutil.rmtree(path, ignore_errors=True)
        elif (process := _read(path / "process.json", Process, tries=3)) is not None:
            found.append(Entry(path, process))
    return sorted(found, key=lambda entry: (entry.process.place.job or "", entry.process.place.rank or 0, entry.path))


def is_alive(path: Path) -> bool:
    """Whether the process with this folder runs, and still runs the program that has made the folder."""
    try:
        os.close(_lock(path))
    except (BlockingIOError, FileNotFoundError) as error:
        return isinstance(error, BlockingIOError)
    except OSError:  # a file system without locks
        host, pid, _ = path.name.rsplit(".", 2)
        return host != socket.gethostname() or Path(f"/proc/{pid}").exists()
    return False


def find(root: Path, pid: int, *, all_ranks: bool = False) -> list[Entry]:
    """The process with this number on this machine; or all ranks of its job, of which it may also be an ancestor.

    Raises:
        CaptureError: there is none, it is another user's, or it cannot be captured.
    """
    known = entries(root)
    here = [entry for entry in known if entry.process.host == socket.gethostname()]
    below = [entry for entry in here if pid in _with_ancestors(entry.process.pid)]
    found = [entry for entry in below if all_ranks or entry.process.pid == pid]
    if not found:
        raise _not_found(pid, [str(entry.process.pid) for entry in below])
    jobs = {entry.process.place.job or entry.path for entry in found}
    if len(jobs) > 1:
        next_step = f"{_SEE_LIST}; name a rank"
        raise CaptureError(f"{len(jobs)} jobs were started by it", where=f"process {pid}", next_step=next_step)
    return [entry for entry in known if entry in found or (all_ranks and entry.process.place.job in jobs)]


def _with_ancestors(pid: int) -> list[int]:
    import psutil

    with suppress(psutil.Error):
        return [pid, *(parent.pid for parent in psutil.Process(pid).parents())]
    return [pid]


def _not_found(pid: int, below: Sequence[str]) -> CaptureError:
    """Why a process cannot be captured."""
    what = "it cannot be captured"
    expected = "a training that `steptrace run --capture` has started, or with `capture.step()` in its loop"
    next_step = f"{_SEE_LIST}; --control names another control folder"
    try:
        os.kill(pid, 0)
    except PermissionError:
        what, next_step = "it belongs to another user", "ask as that user"
    except OSError:
        what, next_step = "there is no such process", _SEE_LIST
    if below:
        expected, next_step = f"one of its children {', '.join(below)}", f"steptrace capture --all-ranks {pid}"
    return CaptureError(what, where=f"process {pid}", expected=expected, next_step=next_step)


def agreed_step(ranks: Sequence[Entry]) -> int:
    """A step that all ranks have yet to come to when they have all seen the request."""
    ahead_s = _AHEAD_S if len({rank.process.host for rank in ranks}) == 1 else _AHEAD_OF_HOSTS_S
    until = time.monotonic() + _AHEAD_S
    while not all(rank.process.step_ns for rank in ranks) and time.monotonic() < until:
        time.sleep(_POLL_S)  # how fast it goes is said a second after its first step
        for rank in ranks:
            rank.process = _read(rank.path / "process.json", Process) or rank.process
    seen = [rank.process for rank in ranks]
    return max(p.steps + 2 + (round(ahead_s * 1e9 / p.step_ns) if p.step_ns else 0) for p in seen)


def post(asked: Sequence[Entry], folder: Path, settings: Settings, start: int | None) -> Request:
    """Ask all processes to record into `folder`, which is made.

    Raises:
        CaptureError: the folder cannot be made, or one of the processes has ended. Those before it have been asked.
    """
    request = Request(f"{time.time_ns()}-{os.getpid()}", str(folder), settings, start)
    where = str(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for entry in asked:
            where = entry.name
            entry.post(request)
    except OSError as error:
        raise CaptureError(f"it cannot be asked, or written to ({error.strerror})", where=where) from error
    return request


def wait(asked: Sequence[Entry], request: Request, timeout_s: float) -> list[tuple[str, str]]:
    """What has become of the request, process by process: a state and a message.

    One that has not even seen it after `timeout_s` is not asked any longer.
    """
    until = time.monotonic() + timeout_s
    while True:
        over = f"{timeout_s:g} s" if time.monotonic() > until else None
        found = [answer for entry in asked if (answer := _answer(entry, request, over)) is not None]
        if len(found) == len(asked):
            return found
        time.sleep(_POLL_S)


def _answer(entry: Entry, request: Request, over: str | None) -> tuple[str, str] | None:
    alive = is_alive(entry.path)  # asked first: the record is written before the end
    record = read_own(request.files(entry.process.place)[1])
    if record is not None and (answer := json.loads(record))["request"] == request.id:
        return answer["state"], answer["message"]
    if not alive:
        return "failed", "the process ended without an answer"
    if over and entry.take(request.id):
        return "refused", f"no step ended within {over}; the request is withdrawn"
    return ("open", f"not done after {over}") if over else None


def _lock(path: Path) -> int:
    return flocked(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))


def _read(path: Path, kind: type[_Message], tries: int = 1) -> _Message | None:
    """A message, if it is there, comes from this user or root, and is valid; it may just be being written."""
    for _ in range(tries):
        with suppress(ValueError, TypeError, KeyError, SteptraceError):
            found = json.loads(read_own(path) or b"")
            found["settings"] = Settings(**found["settings"])
            if "place" in found:
                found["place"] = Place(**found["place"])
            return kind(**found)
    return None
