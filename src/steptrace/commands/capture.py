"""`steptrace capture`: a trace of the next few steps of a training that is already running."""

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from steptrace.capture import control
from steptrace.capture.control import Entry
from steptrace.commands.numbers import not_negative, positive, seconds
from steptrace.commands.output import add_json, columns, progress, show, warn
from steptrace.errors import CaptureError
from steptrace.recording import WITH_TRACE, Settings

_TIMEOUT_S: Final = 300.0


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.description = (
        "Ask a running training, started by `steptrace run --capture` or with a steptrace.capture.Capture in its loop, "
        "to record its next steps. See docs/capture.md."
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
    add_json(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Ask, and return the exit code."""
    root: Path = (arguments.control or control.default_root()).absolute()
    if arguments.list:
        found = control.entries(root)
        show(arguments, [asdict(entry.process) for entry in found], _listed(found))
        return 0
    if arguments.pid is None:
        raise CaptureError(
            "no process is named",
            expected="steptrace capture PID",
            next_step="`steptrace capture --list` shows what can be captured",
        )
    asked = control.find(root, arguments.pid, all_ranks=arguments.all_ranks)
    if busy := [entry for entry in asked if entry.process.recording]:
        raise CaptureError("a capture is under way", where=busy[0].name, next_step="ask again when it is done")
    folder = _folder(arguments.out, asked[0])
    # What ranks record is what the first of them would: they must go through the same number of warm-up steps.
    names = ("steps", "warmup", "stacks", "shapes", "memory")
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    settings = replace(asked[0].process.settings, **given)
    start = control.agreed_step(asked) if len(asked) > 1 else None
    request = control.post(asked, folder, settings, start)
    if not arguments.json:
        print(f"{_asked(asked, settings, start)}\ninto {folder}", flush=True)  # noqa: T201
    said: list[str] = []
    answers: list[tuple[str, str]] = []
    if arguments.wait:
        with progress() as line:
            line.say("waiting for the trace")
            answers = control.wait(asked, request, arguments.timeout)
        said += [f"{entry.name}: {state}: {message}" for entry, (state, message) in zip(asked, answers, strict=True)]
    next_step = f"steptrace analyze {folder} --out {folder / 'analysis'}"
    document = {
        "folder": folder,
        "processes": [asdict(entry.process) for entry in asked],
        "settings": asdict(settings),
        "first_step": start,
        "answers": [{"state": state, "message": message} for state, message in answers],
        "next": next_step,
    }
    without = [(entry, text) for entry, (state, text) in zip(asked, answers, strict=False) if state not in WITH_TRACE]
    show(arguments, document, "\n".join(said if without else [*said, f"next: {next_step}"]))
    if without:
        more = f" ({len(without)} of {len(asked)} left no trace)" if len(asked) > 1 else ""
        raise CaptureError(
            f"no trace: {without[0][1]}{more}",
            where=without[0][0].name,
            next_step='see "What can fail" in docs/capture.md',
        )
    return 0


def _folder(out: Path | None, first: Entry) -> Path:
    if out is None:
        return Path(first.process.folder) / f"{datetime.now():%Y%m%d-%H%M%S.%f}-pid{first.process.pid}"
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CaptureError(
            "it exists and is not an empty folder", where=out, expected="a folder of its own for each capture"
        )
    return out.absolute()


def _asked(asked: Sequence[Entry], settings: Settings, start: int | None) -> str:
    """What was asked of whom; warns of ranks that cannot be asked from here."""
    who = asked[0].name if len(asked) == 1 else f"{len(asked)} ranks"
    when = "" if start is None else f", from step {start} on"
    world_size = asked[0].process.place.world_size
    if start is not None and world_size is not None and len(asked) < world_size:
        warn(f"only {len(asked)} of {world_size} ranks can be asked from here; see docs/capture.md")
    return f"asked {who}: {settings.steps} steps after {settings.warmup} of warm-up{when}"


def _listed(found: Sequence[Entry]) -> str:
    rows = [["host", "pid", "rank", "steps", "running", "state", "script"]]
    for process in (entry.process for entry in found):
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
