"""The control folder, through which `steptrace capture` requests a trace of a running program. Imports no torch.

    ROOT/                   0700; see `control_folder`
      PID/                  of a program that `steptrace run --capture` has started
        process.json        who it is, and its steps so far; written once a second
        request.json        written by `steptrace capture`, removed by the program that takes it

The reply is the record beside the trace (capture.json). No signal is sent: it would end a program without a handler.
"""

import json
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from steptrace.engine.recording import Request, Settings
from steptrace.files import private_folder, user_folder, write_bytes


def control_folder() -> Path:
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
    rank: int | None = None
    world_size: int | None = None
    steps: int = 0
    recording: bool = False

    @property
    def path(self) -> Path:
        """Its control folder."""
        return control_folder() / str(self.pid)

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"process {self.pid}" + ("" if self.rank is None else f", rank {self.rank}")

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return start_of(self.pid) == self.start

    def publish(self) -> None:
        """Write its state, with its steps so far, for other processes."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        write_bytes(self.path / "process.json", json.dumps(asdict(self)).encode())

    def post(self, request: Request) -> None:
        """Leave a request for it."""
        write_bytes(self.path / "request.json", json.dumps(asdict(request)).encode())

    def take(self) -> Request | None:
        """Remove and return the waiting request; None without a valid one."""
        file = self.path / "request.json"
        content = _read(file)
        file.unlink(missing_ok=True)
        with suppress(TypeError, KeyError):
            return Request(**{**content, "settings": Settings(**content["settings"])}) if content else None
        return None


def processes() -> list[Process]:
    """The programs that can be captured, by process number; removes the folders of ended ones."""
    running = []
    for path in control_folder().iterdir():
        with suppress(TypeError):
            process = Process(**_read(path / "process.json"))
            if process.is_alive():
                running.append(process)
                continue
        if start_of(path.name) is None:
            shutil.rmtree(path, ignore_errors=True)
    return sorted(running, key=lambda process: process.pid)


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty if there is none."""
    with suppress(OSError, ValueError):
        content = json.loads(path.read_bytes())
        return content if isinstance(content, dict) else {}
    return {}
