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
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from steptrace.errors import SteptraceError
from steptrace.exchange import flocked, private_folder, read_own, user_folder, write_whole
from steptrace.place import Place
from steptrace.recording import Request, Settings

ROOT_VARIABLE: Final = "STEPTRACE_CAPTURE_CONTROL"
_LOG: Final = logging.getLogger("steptrace.capture")
_Message = TypeVar("_Message")


@dataclass
class Process:
    """A process that can be captured; the latest of its `steps` took a median of `step_ns`.

    `path` is its folder below ROOT; all else is what it writes there.
    """

    path = Path()  # without a type: no field, so it is neither written nor compared
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

    @property
    def name(self) -> str:
        """What a person calls it."""
        return f"process {self.pid}" + ("" if self.place.rank is None else f", rank {self.place.rank}")

    def enter(self, root: Path) -> int | None:
        """Make its folder; returns the lock that it has to keep open, None on a file system without locks."""
        path = private_folder(root) / f"{self.host}.{self.pid}.{time.time_ns()}"
        self.path = path.with_name(f".{path.name}")
        self.path.mkdir(mode=0o700)
        lock = None
        with suppress(OSError):
            lock = _lock(self.path)  # before it is seen: an unlocked one is that of an ended process
        self.publish()
        self.path = self.path.rename(path)
        return lock

    def publish(self) -> None:
        """Let others see it, and how far it is."""
        # In place: a file made anew every second takes ten times as long.
        descriptor = os.open(self.path / "process.json", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(descriptor, os.pwrite(descriptor, json.dumps(asdict(self)).encode(), 0))
        os.close(descriptor)

    def post(self, request: Request) -> None:
        """Ask it."""
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


def processes(root: Path) -> list[Process]:
    """The processes that can be captured, by job and rank; what ended ones have left is removed."""
    found = []
    for path in private_folder(root).glob("[!.]*.*.*"):
        if not is_alive(path):
            shutil.rmtree(path, ignore_errors=True)
        elif (process := published(path, tries=3)) is not None:
            found.append(process)
    return sorted(found, key=lambda process: (process.place.job or "", process.place.rank or 0, process.path))


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


def _lock(path: Path) -> int:
    return flocked(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))


def published(path: Path, tries: int = 1) -> Process | None:
    """What the process with this folder has written last; it may just be writing."""
    process = next(filter(None, (_read(path / "process.json", Process) for _ in range(tries))), None)
    if process is not None:
        process.path = path
    return process


def _read(path: Path, kind: type[_Message]) -> _Message | None:
    """A message, if it is there, comes from this user or root, and is valid."""
    with suppress(ValueError, TypeError, KeyError, SteptraceError):
        found = json.loads(read_own(path) or b"")
        found["settings"] = Settings(**found["settings"])
        if "place" in found:
            found["place"] = Place(**found["place"])
        return kind(**found)
    return None
