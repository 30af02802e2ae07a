"""`steptrace capture`: a trace of the next few steps of a training that is already running."""

import argparse
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Final

from steptrace.commands.console import not_negative, positive, show
from steptrace.documents.command_answers import (
    CapturableProcess,
    CaptureAllAnswer,
    CaptureAnswer,
    CapturedRank,
    CaptureSettings,
)
from steptrace.engine.recording import WITH_TRACE, RecordingSettings, Request
from steptrace.errors import CaptureError
from steptrace.exit_codes import ExitCode
from steptrace.files import decode_json, read_bytes
from steptrace.format import clipped, columns, plural, rough_duration
from steptrace.launch.capture import ALL_RANKS_FILE, JobRequest, ListeningProcess, processes
from steptrace.output_folder import require_empty

_POLL_S: Final = 0.05
#: Seconds from the first rank's answer until ranks without one are given up: a large trace takes long to write.
_WAIT_FOR_OTHERS_S: Final = 120.0
_NONE: Final = "no process can be captured: `steptrace run --capture -- COMMAND` starts one"


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.description = (
        "Ask a training that `steptrace run --capture` has started to record its next steps, and wait for the trace; "
        "without PID list the trainings that can be asked. See docs/programs.md."
    )
    command.add_argument("pid", nargs="?", type=positive, metavar="PID", help="the training's process")
    command.add_argument(
        "--all-ranks",
        action="store_true",
        help="record the same steps of all ranks of the process's job, on other hosts too where they share the folder "
        "for traces",
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


def run(arguments: argparse.Namespace) -> int:
    """Ask, wait for the trace, and return the exit code."""
    options = {name: getattr(arguments, name) for name in ("steps", "warmup", "stacks", "shapes", "memory")}
    chosen = {name: value for name, value in options.items() if value is not None}
    if arguments.pid is None:
        running = processes()
        show(arguments, [CapturableProcess(**asdict(process)) for process in running], _listed(running))
        return ExitCode.DONE
    process = find(arguments.pid)
    if process.recording:
        raise CaptureError("a capture is already running", where=process.name, next_step="try again when it has ended")
    if arguments.all_ranks and process.world_size == 1:
        raise CaptureError("--all-ranks needs one of several ranks", where=process.name, next_step="leave it out")
    folder = _folder(arguments.out, process)
    settings = RecordingSettings(**chosen)
    if arguments.all_ranks:
        return _capture_all(arguments, process, folder, settings)
    request = post(process, folder, settings)
    if not arguments.json:
        asked = f"asked {process.name}: {settings.steps} steps after {settings.warmup} of warm-up"
        print(f"{asked}\ninto {folder}", flush=True)  # noqa: T201
    state, message = wait(process, request)
    if state not in WITH_TRACE:
        next_step = 'see "Capture from a live job" in docs/programs.md'
        raise CaptureError(f"no trace: {message}", where=process.name, next_step=next_step)
    next_step = f"steptrace analyze {folder} --out {folder / 'analysis'}"
    answer = CaptureAnswer(
        folder=str(folder),
        process=CapturableProcess(**asdict(process)),
        settings=CaptureSettings(**asdict(settings)),
        state=state,
        message=message,
        next=next_step,
    )
    show(arguments, answer, f"{process.name}: {state}: {message}\nnext: {next_step}")
    return ExitCode.DONE


def _capture_all(
    arguments: argparse.Namespace, process: ListeningProcess, folder: Path, settings: RecordingSettings
) -> int:
    """Ask all ranks of a job, wait for their traces, and return the exit code."""
    request = Request(f"{time.time_ns()}-{os.getpid()}", str(folder), settings)
    ranks = process.world_size
    with _ended_by_sigterm():
        try:
            to_all = _post_to_all(process, request)
            if not arguments.json:
                first = f"{settings.steps} steps from step {to_all.at_step} on, after {settings.warmup} of warm-up"
                print(f"asked {ranks} ranks: {first}\ninto {folder}", flush=True)  # noqa: T201
            answers = _answers_of_all(process, to_all)
        finally:
            process.withdraw_from_all(request)
    missing = sorted(set(range(ranks)) - set(answers))
    failed = {rank: answer for rank, answer in answers.items() if answer[0] not in WITH_TRACE}
    if missing or failed:
        reasons = [f"rank {rank}: {message}" for rank, (_, message) in sorted(failed.items())]
        reasons += [f"no answer of {plural(len(missing), 'rank')}: {', '.join(map(str, missing))}"] if missing else []
        raise CaptureError(
            f"not all ranks were recorded: {'; '.join(reasons)}",
            where=folder,
            expected="ranks of one job that run the same steps, were started by `steptrace run --capture`, and share "
            f"{process.folder}",
            next_step='see "Capture from a live job" in docs/programs.md',
        )
    next_step = f"steptrace analyze {folder} --out {folder / 'analysis'}"
    answer = CaptureAllAnswer(
        folder=str(folder),
        process=CapturableProcess(**asdict(process)),
        settings=CaptureSettings(**asdict(settings)),
        at_step=to_all.at_step,
        ranks={
            str(rank): CapturedRank(state=state, message=message) for rank, (state, message) in sorted(answers.items())
        },
        next=next_step,
    )
    show(arguments, answer, f"{plural(ranks, 'rank')} recorded\nnext: {next_step}")
    return ExitCode.DONE


def _post_to_all(process: ListeningProcess, request: Request) -> JobRequest:
    """Ask all ranks of a process's job; `CaptureError` if they could not read the request."""
    try:
        Path(request.folder).mkdir(parents=True, exist_ok=True)
        to_all = process.post_to_all(request)
    except OSError as error:
        raise CaptureError(f"cannot be written ({error.strerror})", where=process.folder) from error
    if process.job_request() != to_all:
        raise CaptureError(
            "the ranks would not read the request: it cannot be read back, or another user owns it",
            where=Path(process.folder) / ALL_RANKS_FILE,
            expected="a folder in which the files that you make are yours, and which no other capture uses",
            next_step="start the job with another folder: steptrace run --capture --out DIR",
        )
    return to_all


def _answers_of_all(process: ListeningProcess, request: JobRequest) -> dict[int, tuple[str, str]]:
    """The state and message of each rank that has answered.

    The wait ends when all have, or when the process has ended. It also ends some time after the first answer, or after
    the process has made all the steps that it was asked to record: ranks that have not answered by then have not seen
    the request, for example because the folder is another one on their host.
    """
    last_step = request.at_step + request.settings.warmup + request.settings.steps
    until: float | None = None
    while True:
        alive = process.is_listening()  # asked first: the record is written before
        answers = {}
        for file in sorted(Path(request.folder).glob("capture*.json")):
            record = decode_json(read_bytes(file))
            if record.get("request") == request.id:
                answers[int(record["rank"])] = (str(record["state"]), str(record["message"]))
        if len(answers) == process.world_size or not alive:
            return answers
        if until is None and (answers or process.has_passed(last_step)):
            until = time.monotonic() + _WAIT_FOR_OTHERS_S
        if until is not None and time.monotonic() > until:
            return answers
        time.sleep(_POLL_S)


def find(pid: int) -> ListeningProcess:
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


def post(process: ListeningProcess, folder: Path, settings: RecordingSettings) -> Request:
    """Ask a process to record into `folder`, which is made; `CaptureError` if that cannot be done."""
    request = Request(f"{time.time_ns()}-{os.getpid()}", str(folder), settings)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        process.post(request)
    except OSError as error:
        raise CaptureError(f"cannot be written ({error.strerror})", where=folder) from error
    return request


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """A context that SIGTERM (`timeout 60 steptrace capture`) interrupts as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def wait(process: ListeningProcess, request: Request) -> tuple[str, str]:
    """A request's final state and a message. An interrupt and SIGTERM withdraw it."""
    with _ended_by_sigterm():
        try:
            while True:
                # Asked first, since the process writes the record before it ends.
                alive = process.is_alive()
                listening = process.is_listening()
                for file in sorted(Path(request.folder).glob("capture*.json")):
                    record = decode_json(read_bytes(file))
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


def _folder(out: Path | None, process: ListeningProcess) -> Path:
    if out is None:
        return Path(process.folder) / f"{datetime.now():%Y%m%d-%H%M%S.%f}-pid{process.pid}"
    require_empty(out)
    return out.absolute()


def _listed(running: Sequence[ListeningProcess]) -> str:
    rows = [["pid", "rank", "steps", "running", "state", "script"]]
    for process in running:
        rank = "-" if process.world_size == 1 else f"{process.rank} of {process.world_size}"
        state = "recording" if process.recording else "ready"
        since = rough_duration(max(time.time() - process.since, 0))
        rows.append([str(process.pid), rank, str(process.steps), since, state, clipped(process.script, 80)])
    return "\n".join(columns(rows[0], rows[1:])) if running else _NONE
