"""`steptrace capture`: a trace of the next few steps of a training that is already running."""

import argparse
import json
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Final

import psutil

from steptrace.capture.control import Process, default_root, is_alive, processes, published
from steptrace.commands.numbers import not_negative, positive, seconds
from steptrace.commands.output import columns, progress, show, warn
from steptrace.errors import CaptureError
from steptrace.exchange import read_own
from steptrace.recording import WITH_TRACE, Request, Settings

_TIMEOUT_S: Final = 300.0
#: How far ahead of the ranks they are asked to begin: a request is seen within a second, over a network later.
_AHEAD_S: Final = 3.0
_AHEAD_OF_HOSTS_S: Final = 10.0
_POLL_S: Final = 0.05
_SEE_LIST: Final = "`steptrace capture --list` shows what can be captured"


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.description = (
        "Ask a running training, started by `steptrace run --capture` or with a steptrace.capture.Capture in its loop, "
        "to record its next steps. See docs/programs.md."
    )
    command.add_argument("pid", nargs="?", type=positive, metavar="PID", help="the training's process")
    command.add_argument("--list", action="store_true", help="show the processes that can be captured, and stop")
    command.add_argument(
        "--all-ranks", action="store_true", help="every rank of PID's job, from one step on; PID may be the launcher"
    )
    command.add_argument("--steps", type=positive, metavar="N", help="steps to record")
    command.add_argument("--warmup", type=not_negative, metavar="N", help="steps under the profiler before them")
    for name, what in (
        ("stacks", "Python frames, for source lines"),
        ("shapes", "sizes and types of tensors"),
        ("memory", "allocations and releases"),
    ):
        command.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, help=f"record {what}")
    command.add_argument("--out", type=Path, metavar="DIR", help="folder to write to; default: a new one, as printed")
    command.add_argument("--wait", action="store_true", help="wait for the trace, and say what became of it")
    command.add_argument(
        "--timeout", type=seconds, default=_TIMEOUT_S, metavar="S", help=f"longest wait; default: {_TIMEOUT_S:g} s"
    )
    command.add_argument("--control", type=Path, metavar="DIR", help="control folder, where the training names one")


def run(arguments: argparse.Namespace) -> int:
    """Ask, and return the exit code."""
    root: Path = (arguments.control or default_root()).absolute()
    if arguments.list:
        found = processes(root)
        show(arguments, [asdict(process) for process in found], _listed(found))
        return 0
    if arguments.pid is None:
        raise CaptureError("no process is named", expected="steptrace capture PID", next_step=_SEE_LIST)
    asked = find(root, arguments.pid, all_ranks=arguments.all_ranks)
    if busy := [process for process in asked if process.recording]:
        raise CaptureError("a capture is under way", where=busy[0].name, next_step="ask again when it is done")
    folder = _folder(arguments.out, asked[0])
    # What ranks record is what the first of them would: they must go through the same number of warm-up steps.
    names = ("steps", "warmup", "stacks", "shapes", "memory")
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    settings = replace(asked[0].settings, **given)
    asked, start = agreed_step(asked) if len(asked) > 1 else (asked, None)
    request = post(asked, folder, settings, start)
    if not arguments.json:
        print(f"{_asked(asked, settings, start)}\ninto {folder}", flush=True)  # noqa: T201
    said: list[str] = []
    answers: list[tuple[str, str]] = []
    if arguments.wait:
        with progress() as line:
            line.say("waiting for the trace")
            answers = wait(asked, request, arguments.timeout)
        said += [f"{process.name}: {state}: {text}" for process, (state, text) in zip(asked, answers, strict=True)]
    next_step = f"steptrace analyze {folder} --out {folder / 'analysis'}"
    document = {
        "folder": folder,
        "processes": [asdict(process) for process in asked],
        "settings": asdict(settings),
        "first_step": start,
        "answers": [{"state": state, "message": message} for state, message in answers],
        "next": next_step,
    }
    without = [(one, text) for one, (state, text) in zip(asked, answers, strict=False) if state not in WITH_TRACE]
    show(arguments, document, "\n".join(said if without else [*said, f"next: {next_step}"]))
    if without:
        more = f" ({len(without)} of {len(asked)} left no trace)" if len(asked) > 1 else ""
        raise CaptureError(
            f"no trace: {without[0][1]}{more}",
            where=without[0][0].name,
            next_step='see "Capture from a live job" in docs/programs.md',
        )
    return 0


def find(root: Path, pid: int, *, all_ranks: bool = False) -> list[Process]:
    """The process with this number on this machine; or all ranks of its job, of which it may also be an ancestor.

    Raises:
        CaptureError: there is none, it is another user's, or it cannot be captured.
    """

    def is_below(process: Process) -> bool:
        with suppress(psutil.Error):
            return pid in (process.pid, *(parent.pid for parent in psutil.Process(process.pid).parents()))
        return pid == process.pid

    known = processes(root)
    below = [process for process in known if process.host == socket.gethostname() and is_below(process)]
    found = [process for process in below if all_ranks or process.pid == pid]
    if not found:
        raise _not_found(pid, [str(process.pid) for process in below])
    jobs = {process.place.job or process.path for process in found}
    if len(jobs) > 1:
        next_step = f"{_SEE_LIST}; name a rank"
        raise CaptureError(f"{len(jobs)} jobs were started by it", where=f"process {pid}", next_step=next_step)
    return [process for process in known if process in found or (all_ranks and process.place.job in jobs)]


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


def agreed_step(ranks: list[Process]) -> tuple[list[Process], int]:
    """All ranks as they are by now, and a step that they have yet to come to when they have all seen the request."""
    ahead_s = _AHEAD_S if len({rank.host for rank in ranks}) == 1 else _AHEAD_OF_HOSTS_S
    until = time.monotonic() + _AHEAD_S
    while not all(rank.step_ns for rank in ranks) and time.monotonic() < until:
        time.sleep(_POLL_S)  # how fast it goes is said a second after its first step
        ranks = [published(rank.path) or rank for rank in ranks]
    step = max(rank.steps + 2 + (round(ahead_s * 1e9 / rank.step_ns) if rank.step_ns else 0) for rank in ranks)
    return ranks, step


def post(asked: Sequence[Process], folder: Path, settings: Settings, start: int | None) -> Request:
    """Ask all processes to record into `folder`, which is made.

    Raises:
        CaptureError: the folder cannot be made, or one of the processes has ended. Those before it have been asked.
    """
    request = Request(f"{time.time_ns()}-{os.getpid()}", str(folder), settings, start)
    where = str(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for process in asked:
            where = process.name
            process.post(request)
    except OSError as error:
        raise CaptureError(f"it cannot be asked, or written to ({error.strerror})", where=where) from error
    return request


def wait(asked: Sequence[Process], request: Request, timeout_s: float) -> list[tuple[str, str]]:
    """What has become of the request, process by process: a state and a message.

    One that has not even seen it after `timeout_s` is not asked any longer.
    """
    until = time.monotonic() + timeout_s
    while True:
        over = f"{timeout_s:g} s" if time.monotonic() > until else None
        found = [answer for process in asked if (answer := _answer(process, request, over)) is not None]
        if len(found) == len(asked):
            return found
        time.sleep(_POLL_S)


def _answer(process: Process, request: Request, over: str | None) -> tuple[str, str] | None:
    alive = is_alive(process.path)  # asked first: the record is written before the end
    record = read_own(request.files(process.place)[1])
    if record is not None and (answer := json.loads(record))["request"] == request.id:
        return answer["state"], answer["message"]
    if not alive:
        return "failed", "the process ended without an answer"
    if over and process.take(request.id):
        return "refused", f"no step ended within {over}; the request is withdrawn"
    return ("open", f"not done after {over}") if over else None


def _folder(out: Path | None, first: Process) -> Path:
    if out is None:
        return Path(first.folder) / f"{datetime.now():%Y%m%d-%H%M%S.%f}-pid{first.pid}"
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CaptureError(
            "it exists and is not an empty folder", where=out, expected="a folder of its own for each capture"
        )
    return out.absolute()


def _asked(asked: Sequence[Process], settings: Settings, start: int | None) -> str:
    """What was asked of whom; warns of ranks that cannot be asked from here."""
    who = asked[0].name if len(asked) == 1 else f"{len(asked)} ranks"
    when = "" if start is None else f", from step {start} on"
    world_size = asked[0].place.world_size
    if start is not None and world_size is not None and len(asked) < world_size:
        warn(f"only {len(asked)} of {world_size} ranks can be asked from here; see docs/programs.md")
    return f"asked {who}: {settings.steps} steps after {settings.warmup} of warm-up{when}"


def _listed(found: Sequence[Process]) -> str:
    rows = [["host", "pid", "rank", "steps", "running", "state", "script"]]
    for process in found:
        rank = "-" if process.place.rank is None else f"{process.place.rank} of {process.place.world_size}"
        state = "recording" if process.recording else "ready"
        script = process.script if len(process.script) <= 80 else f"{process.script[:77]}..."
        age = _age(time.time() - process.since)
        rows.append([process.host, str(process.pid), rank, str(process.steps), age, state, script])
    if len({row[0] for row in rows[1:]}) == 1:  # all on one machine
        rows = [row[1:] for row in rows]
    return "\n".join(columns(rows[0], rows[1:])) if found else "no process can be captured"


def _age(seconds: float) -> str:
    minutes, seconds = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds:02}s" if minutes else f"{seconds}s"
