"""`steptrace capture`: a trace of the next few steps of a training that is already running."""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from steptrace.capture import ask
from steptrace.capture.control import default_root
from steptrace.capture.plan import Answer, Settings, new_folder
from steptrace.commands.numbers import not_negative, positive, seconds
from steptrace.commands.tables import columns
from steptrace.errors import CaptureError

_TIMEOUT_S: Final = 300.0


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    command = commands.add_parser(
        "capture",
        help="a trace of the next steps of a training that is already running",
        description="Ask a running training, with a steptrace.capture.Capture in its loop, to record its next steps. "
        "See docs/capture.md.",
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
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Ask, and return the exit code."""
    root: Path = (arguments.control or default_root()).absolute()
    if arguments.list:
        _print_list(ask.capturable(root))
        return 0
    if arguments.pid is None:
        raise CaptureError(
            "no process is named",
            expected="steptrace capture PID",
            next_step="`steptrace capture --list` shows what can be captured",
        )
    targets = ask.find_job(root, arguments.pid) if arguments.all_ranks else [ask.find(root, arguments.pid)]
    busy = next((target for target in targets if target.recording), None)
    if busy is not None:
        raise CaptureError("a capture is under way", where=busy.name, next_step="ask again when it is done")
    folder = _folder(arguments.out, targets)
    # What ranks record is what the first of them would: they must go through the same number of warm-up steps.
    settings = _settings(arguments, targets[0].process.settings)
    start = ask.agreed_step(targets) if len(targets) > 1 else None
    request = ask.post(targets, folder, settings, start)
    _say_asked(targets, settings, start)
    print(f"into {folder}", flush=True)  # noqa: T201
    if arguments.wait:
        _report(ask.wait(targets, request, arguments.timeout))
    print(f"next: steptrace analyze {folder} --out {folder / 'analysis'}")  # noqa: T201
    return 0


def _folder(out: Path | None, targets: Sequence[ask.Target]) -> Path:
    if out is None:
        process = targets[0].process
        return new_folder(Path(process.folder), process.pid)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CaptureError(
            "it exists and is not an empty folder", where=out, expected="a folder of its own for each capture"
        )
    return out.absolute()


def _settings(arguments: argparse.Namespace, own: Settings) -> Settings:
    asked = {
        name: value
        for name in ("steps", "warmup", "stacks", "shapes", "memory")
        if (value := getattr(arguments, name)) is not None
    }
    return replace(own, **asked)


def _say_asked(targets: Sequence[ask.Target], settings: Settings, start: int | None) -> None:
    who = targets[0].name if len(targets) == 1 else f"{len(targets)} ranks"
    when = "" if start is None else f", from step {start} on"
    print(f"asked {who}: {settings.steps} steps after {settings.warmup} of warm-up{when}")  # noqa: T201
    world_size = targets[0].process.world_size
    if start is not None and world_size is not None and len(targets) < world_size:
        others = f"only {len(targets)} of {world_size} ranks can be asked from here"
        print(f"steptrace: warning: {others}; see docs/capture.md", file=sys.stderr)  # noqa: T201


def _report(answers: Sequence[tuple[ask.Target, Answer]]) -> None:
    """Say what became of the request.

    Raises:
        CaptureError: a process has left no trace.
    """
    for target, answer in answers:
        print(f"{target.name}: {answer.state}: {answer.message}")  # noqa: T201
    without = [(target, answer) for target, answer in answers if answer.trace is None]
    if without:
        target, answer = without[0]
        more = f" ({len(without)} of {len(answers)} left no trace)" if len(answers) > 1 else ""
        raise CaptureError(
            f"no trace: {answer.message}{more}", where=target.name, next_step='see "What can fail" in docs/capture.md'
        )


def _print_list(targets: Sequence[ask.Target]) -> None:
    several_hosts = any(not target.here for target in targets)
    rows = []
    for target in targets:
        process, steps = target.process, target.steps()
        if steps is None:
            continue
        rank = "-" if process.rank is None else f"{process.rank} of {process.world_size}"
        state = "recording" if target.recording else "ready"
        host = [process.host] if several_hosts else []
        age = _age(time.time() - process.since)
        rows.append([*host, str(process.pid), rank, str(steps), age, state, _shown(process.script)])
    if not rows:
        print("no process can be captured")  # noqa: T201
        return
    head = [*(["host"] if several_hosts else []), "pid", "rank", "steps", "running", "state", "script"]
    print("\n".join(columns(head, rows)))  # noqa: T201


def _shown(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _age(seconds: float) -> str:
    minutes, seconds = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds:02}s" if minutes else f"{seconds}s"
