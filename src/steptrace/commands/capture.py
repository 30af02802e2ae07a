"""`steptrace capture`: a trace of the next few steps of a training that is already running."""

import argparse
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Final

from steptrace.commands.console import columns, not_negative, positive, show
from steptrace.engine.recording import WITH_TRACE, Request, Settings
from steptrace.errors import CaptureError
from steptrace.format import clipped, rough_duration
from steptrace.launch.capture import Process, processes
from steptrace.output_folder import require_empty

_POLL_S: Final = 0.05
_NONE: Final = "no process can be captured: `steptrace run --capture -- COMMAND` starts one"


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.description = (
        "Ask a training that `steptrace run --capture` has started to record its next steps, and wait for the trace; "
        "without PID list the trainings that can be asked. See docs/programs.md."
    )
    command.add_argument("pid", nargs="?", type=positive, metavar="PID", help="the training's process")
    command.add_argument("--steps", type=positive, metavar="N", help="steps to record")
    command.add_argument("--warmup", type=not_negative, metavar="N", help="steps under the profiler before them")
    for name, what in (
        ("stacks", "Python frames, for source lines"),
        ("shapes", "sizes and types of tensors"),
        ("memory", "allocations and releases"),
    ):
        command.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, help=f"record {what}")
    command.add_argument("--out", type=Path, metavar="DIR", help="folder to write to; default: a new one, as printed")


def run(arguments: argparse.Namespace) -> int:
    """Ask, wait for the trace, and return the exit code."""
    options = {name: getattr(arguments, name) for name in ("steps", "warmup", "stacks", "shapes", "memory")}
    chosen = {name: value for name, value in options.items() if value is not None}
    if arguments.pid is None:
        running = processes()
        show(arguments, [asdict(process) for process in running], _listed(running))
        return 0
    process = find(arguments.pid)
    if process.recording:
        raise CaptureError("a capture is already running", where=process.name, next_step="try again when it has ended")
    folder = _folder(arguments.out, process)
    settings = Settings(**chosen)
    request = post(process, folder, settings)
    if not arguments.json:
        asked = f"asked {process.name}: {settings.steps} steps after {settings.warmup} of warm-up"
        print(f"{asked}\ninto {folder}", flush=True)  # noqa: T201
    state, message = wait(process, request)
    if state not in WITH_TRACE:
        next_step = 'see "Capture from a live job" in docs/programs.md'
        raise CaptureError(f"no trace: {message}", where=process.name, next_step=next_step)
    next_step = f"steptrace analyze {folder} --out {folder / 'analysis'}"
    document = {
        "folder": folder, "process": asdict(process), "settings": asdict(settings), "state": state, "message": message,
        "next": next_step,
    }  # fmt: skip
    show(arguments, document, f"{process.name}: {state}: {message}\nnext: {next_step}")
    return 0


def find(pid: int) -> Process:
    """The process with this number; `CaptureError` if it cannot be captured."""
    for process in processes():
        if process.pid == pid:
            return process
    raise CaptureError(
        "this process cannot be captured",
        where=f"process {pid}",
        expected="a training of your own that `steptrace run --capture` has started, after its first step",
        next_step="`steptrace capture` lists what can be captured",
    )


def post(process: Process, folder: Path, settings: Settings) -> Request:
    """Ask a process to record into `folder`, which is made; `CaptureError` if that cannot be done."""
    request = Request(f"{time.time_ns()}-{os.getpid()}", str(folder), settings)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        process.post(request)
    except OSError as error:
        raise CaptureError(f"cannot be written ({error.strerror})", where=folder) from error
    return request


def wait(process: Process, request: Request) -> tuple[str, str]:
    """A request's final state and a message. Interrupt and SIGTERM (`timeout 60 steptrace capture`) withdraw it."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while True:
            alive, listening = process.is_alive(), process.is_listening()  # asked first: the record is written before
            for file in sorted(Path(request.folder).glob("capture*.json")):
                record = json.loads(file.read_bytes())
                if record.get("request") == request.id:
                    return record["state"], record["message"]
            if not alive:
                return "failed", "the process ended before the trace was written"
            if not listening:
                return "failed", "the process runs on, but can no longer be captured"
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        process.take()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _folder(out: Path | None, process: Process) -> Path:
    if out is None:
        return Path(process.folder) / f"{datetime.now():%Y%m%d-%H%M%S.%f}-pid{process.pid}"
    require_empty(out)
    return out.absolute()


def _listed(running: Sequence[Process]) -> str:
    rows = [["pid", "rank", "steps", "running", "state", "script"]]
    for process in running:
        rank = "-" if process.world_size == 1 else f"{process.rank} of {process.world_size}"
        state = "recording" if process.recording else "ready"
        since = rough_duration(max(time.time() - process.since, 0))
        rows.append([str(process.pid), rank, str(process.steps), since, state, clipped(process.script, 80)])
    return "\n".join(columns(rows[0], rows[1:])) if running else _NONE
