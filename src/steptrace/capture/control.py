"""The control folder: where `steptrace capture` finds a training, asks it, and reads its answers.

    ROOT/                   0700; see `default_root`
      HOST.PID.TIME/        locked by the training as long as it runs
        process.json        who it is, and its steps so far; written once a second
        request-ID.json     written by `steptrace capture`, removed by whoever takes it

The answer is the record beside the trace (capture.json). No signal is sent: one would end a process that does not
handle it.
"""

import fcntl
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

from steptrace.capture.place import Place
from steptrace.capture.recording import Request, Settings
from steptrace.errors import SteptraceError
from steptrace.exchange import private_folder, read_own, user_folder, write_whole

ROOT_VARIABLE: Final = "STEPTRACE_CAPTURE_CONTROL"

_LOG: Final = logging.getLogger("steptrace.capture")
_Message = TypeVar("_Message")


@dataclass
class Process:
    """A process that can be captured: at the time `at` it had done `steps`, the latest in a median of `step_ns`."""

    pid: int
    place: Place
    script: str
    since: float
    folder: str
    settings: Settings
    host: str = field(default_factory=socket.gethostname)
    at: float = 0.0
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
        """Let others see it."""
        write_whole(self.path / "process.json", json.dumps(asdict(self.process)).encode())

    def post(self, request: Request) -> None:
        """Ask the process."""
        write_whole(self.path / f"request-{request.id}.json", json.dumps(asdict(request)).encode())

    def take(self, only: str = "") -> list[Request]:
        """The requests that wait, or one of them; they are removed, and those that are not valid left out."""
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
    named = os.environ.get(ROOT_VARIABLE)
    return Path(named) if named else user_folder() / "capture"


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
    """The processes that can be captured, by job and rank; what ended ones have left is removed.

    Raises:
        SteptraceError: the root is not its user's alone.
    """
    found = []
    for path in private_folder(root).glob("[!.]*.*.*"):
        process = _read(path / "process.json", Process)
        if not is_alive(path):
            shutil.rmtree(path, ignore_errors=True)
        elif process is not None:
            found.append(Entry(path, process))
    return sorted(found, key=lambda entry: (entry.process.place.job or "", entry.process.place.rank or 0, entry.path))


def is_alive(path: Path) -> bool:
    """Whether the process with this folder runs, and still runs the program that has made the folder."""
    try:
        os.close(_lock(path))
    except (FileNotFoundError, BlockingIOError) as error:
        return isinstance(error, BlockingIOError)
    except OSError:  # a file system without locks
        host, pid, _ = path.name.rsplit(".", 2)
        return host != socket.gethostname() or Path(f"/proc/{pid}").exists()
    return False


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _read(path: Path, kind: type[_Message]) -> _Message | None:
    """A message, if it is there, comes from this user or root, and is valid."""
    import msgspec  # only now: a training needs it when it is asked, a launcher's probe never

    try:
        return msgspec.json.decode(read_own(path) or b"", type=kind)
    except (msgspec.DecodeError, SteptraceError):
        return None
