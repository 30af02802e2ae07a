"""The control folder, by which `steptrace capture` asks a running program for a trace. Imports no torch.

    ROOT/                   0700; see `control_folder`
      PID/                  of a program that `steptrace run --capture` has started
        process.json        who it is, and its steps so far; written once a second
        request.json        written by `steptrace capture`, removed by the program that takes it

The answer is the record beside the trace (capture.json). No signal is sent: one would end a program without a handler.
"""

import json
import os
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from steptrace.engine.recording import Request, Settings
from steptrace.files import private_folder, user_folder, write_bytes

ROOT_VARIABLE: Final = "STEPTRACE_CAPTURE_CONTROL"


def control_folder() -> Path:
    """The folder of all programs of this user that can be captured."""
    return private_folder(Path(os.environ.get(ROOT_VARIABLE) or user_folder() / "capture"))


def start_of(pid: int | str) -> str | None:
    """When a process of this machine began, in ticks since the machine did; None if there is no such process.

    A process number is given again some time after its process has ended; with its beginning it is unique.
    """
    try:
        # After the name in brackets, which may hold anything, comes field 3; the beginning is field 22.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


@dataclass
class Process:
    """A program that can be captured: `since` is its beginning in Unix seconds, `folder` where its traces go."""

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
        """What a person calls it."""
        return f"process {self.pid}" + ("" if self.rank is None else f", rank {self.rank}")

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return start_of(self.pid) == self.start

    def publish(self) -> None:
        """Let others see it, and how far it is."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        write_bytes(self.path / "process.json", json.dumps(asdict(self)).encode())

    def post(self, request: Request) -> None:
        """Ask it."""
        write_bytes(self.path / "request.json", json.dumps(asdict(request)).encode())

    def take(self) -> Request | None:
        """The request that waits, which is removed; None without a valid one."""
        file = self.path / "request.json"
        content = _read(file)
        file.unlink(missing_ok=True)
        with suppress(TypeError, KeyError):
            return Request(**{**content, "settings": Settings(**content["settings"])}) if content else None
        return None


def processes() -> list[Process]:
    """The programs that can be captured, by process number; what ended ones have left is removed."""
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
