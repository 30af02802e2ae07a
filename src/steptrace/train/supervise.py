"""Runs one training as a child and always says how it ended, so that one failure stops nothing else.

    python -m steptrace.train.supervise --out DIR --attempt N [--device cpu|cuda] -- COMMAND...

The child's output goes to DIR/train.log (or what `--log` names), its progress lines to stderr. When it ends, in
whatever way, DIR/status.json says how (`steptrace.record.Status`) and the exit code is 0: what a failure means for the
whole is decided once, after the reports are written. Only if the supervisor itself is told to stop, or whoever started
it is gone, does it kill the child with all its processes and leave no status; the run then counts as not begun. One
supervisor at a time works in a folder, whoever started it and on whatever machine.
"""

import argparse
import contextlib
import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from steptrace import deadline
from steptrace.documents.run import Status
from steptrace.errors import RecordError, SteptraceError
from steptrace.record import FINISHED_FILE, STATUS_FILE, read_status, write_status
from steptrace.terminal import printable
from steptrace.train.devices import acquire, holder, try_lock
from steptrace.train.endings import Ending, classify, kernel_oom_kills, last_lines
from steptrace.train.fork_server import ask, is_program
from steptrace.train.process_tree import Guarded, die_with, handling
from steptrace.train.run_log import Log, say

#: What an attempt may leave in its folder; removed before the next so that nothing of a failed run passes as its own.
_STALE = (
    "status*.json",
    "run.json",
    "steps.parquet",
    "sections.parquet",
    "input.parquet",
    "trace*.json.gz",
    "communication.json",
    "sources.json",
    "op_lines.parquet",
    "warned_syncs.json",
    "memory.json",
    "summary.json",
    "tables",
    "ranks",
    "equivalence.json",
    "train.log",
)
#: Locked as long as an attempt, or anything it started, is at work in the folder.
LOCK_FILE = ".lock"
_POLL_S = 0.2


class _StopError(Exception):
    """The supervisor was told to stop or its parent is gone; the argument is its exit code."""


@dataclass(frozen=True)
class Order:
    """What to run and where: one attempt at one run."""

    out: Path
    attempt: int
    command: Sequence[str]
    device: str | None = None
    devices: int = 1
    expect: Sequence[str] = ()
    timeout_s: float | None = None
    failures: Path | None = None
    key: str = ""
    label: str = ""
    log: str = "train.log"
    show_log: bool = False
    server: str = ""


def main(arguments: Sequence[str] | None = None, *, server: int | None = None) -> int:
    """Run the command line; return 0 whenever a status was written.

    Args:
        arguments: the command line; None for this process's.
        server: the fork server that this process is forked from, its parent.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    order, parent = _parse(arguments)
    try:
        with handling(dict.fromkeys((signal.SIGTERM, signal.SIGINT, signal.SIGHUP), _stop)):
            die_with(server or parent, signal.SIGTERM)
            if order.server and server is None and is_program(order.command):
                code = ask(order.server, parent, arguments)
                if code is not None:
                    return code
            supervise(order, parent=server or parent)
    except _StopError as stopped:
        return int(stopped.args[0])
    return 0


def supervise(order: Order, *, parent: int) -> Ending:
    """Run one attempt to its end and write its status.

    Args:
        order: what to run.
        parent: the process to live no longer than.
    """
    order.out.mkdir(parents=True, exist_ok=True)
    lock = _only_one_at(order, parent)
    try:
        return _taken_back(order) or _attempt(order, parent, lock)
    finally:
        for descriptor in lock:
            os.close(descriptor)


def _attempt(order: Order, parent: int, lock: Sequence[int]) -> Ending:
    for pattern in _STALE:
        for path in order.out.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    start = time.monotonic()
    log = Log(order.out / order.log, order.label)
    if not log.brief:
        log.say(f"starts{f', attempt {order.attempt}' if order.attempt > 1 else ''}")
    kills = kernel_oom_kills()
    exit_code, problem = None, None
    try:
        start, exit_code, problem = _run(order, log, parent, lock)
    except (SteptraceError, OSError) as error:
        problem = str(error)
        log.write(f"{problem}\n".encode())
    finally:
        log.close()
    wall_s = time.monotonic() - start
    missing = [name for name in order.expect if not (order.out / name).exists()]
    ending = classify(exit_code, log.lines, problem=problem, missing=missing, kernel_killed=kernel_oom_kills() > kills)
    _record(order, ending, last_lines(log.lines), started_at, wall_s)
    if not log.brief:
        log.say(f"{ending.status} after {wall_s:.1f} s{f': {ending.error}' if ending.error else ''}")
    if order.show_log and ending.status != "ok":
        sys.stderr.write(printable((order.out / order.log).read_text(encoding="utf-8", errors="replace")))
    return ending


def _only_one_at(order: Order, parent: int) -> list[int]:
    """Wait until no other supervisor nor what it left behind works in the folder; return the open lock."""
    path = order.out / LOCK_FILE
    waiting = _Waiting(order.label, parent)
    try:
        while (lock := try_lock(path)) is None:
            waiting(f"another attempt at this run (process {holder(path)})")
            time.sleep(_POLL_S)
    except OSError:  # a file system without locks
        return []
    return [lock]


def _taken_back(order: Order) -> Ending | None:
    """How this very run has ended already: before a killed workflow knew, or while we waited.

    See `steptrace.workflow.resume`. Snakemake removes a status before it has a run repeated: one that is there was
    written since.
    """
    for name in (STATUS_FILE, FINISHED_FILE) if order.key else ():
        with contextlib.suppress(RecordError):
            found = read_status(order.out, name)
            whole = all((order.out / expected).exists() for expected in order.expect)
            if (found.key, found.status) == (order.key, "ok") and whole:
                (order.out / name).replace(order.out / STATUS_FILE)
                say(order.label, "has ended already, and is not run again")
                return Ending(found.status, found.exit_code, found.signal, found.error)
    return None


def _run(order: Order, log: Log, parent: int, keep: Sequence[int]) -> tuple[float, int, str | None]:
    """Start the child and follow it; return its start (monotonic seconds), its exit code and why it was stopped."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    lease = None
    if order.device:
        lease = acquire(order.device, waiting=_Waiting(order.label, parent), count=order.devices)
        environment.update(lease.environment)
    start = time.monotonic()
    ends_at = start + order.timeout_s if order.timeout_s else None
    environment |= deadline.environment(ends_at)
    child = Guarded(order.command, environment, keep=(*keep, *(lease.descriptors if lease else ())))
    if lease:
        lease.close()
    try:
        problem = _follow(child, log, parent, ends_at)
    finally:
        child.end()
    return start, child.result(), problem


def _follow(child: Guarded, log: Log, parent: int, ends_at: float | None) -> str | None:
    """Copy the child's output until it ends; return why it was stopped, None if it ended by itself."""
    ended = False
    while True:
        if os.getppid() != parent:
            raise _StopError(1)
        ready, _, _ = select.select([child.output], [], [], 0 if ended else _POLL_S)
        if ready:
            content = os.read(child.output, 65536)
            log.write(content)
            if content:
                continue
            # End of file: nobody can write any more, but the child may take a moment to be gone.
            child.wait(_POLL_S)
        if ended:
            return None
        if child.poll():
            ended = True
        elif ends_at is not None and time.monotonic() > ends_at:
            where = deadline.stopped_at(log.lines)
            return f"stopped: it took longer than timeout_minutes allows{f', at {where}' if where else ''}"


def _stop(number: int, _frame: FrameType | None) -> None:
    raise _StopError(128 + number)


def _record(order: Order, ending: Ending, tail: Sequence[str], started_at: str, wall_s: float) -> None:
    status = Status(
        status=ending.status,
        exit_code=ending.exit_code,
        signal=ending.signal,
        error=ending.error,
        log_tail=tuple(tail),
        started_at=started_at,
        wall_s=round(wall_s, 3),
        attempt=order.attempt,
        key=order.key,
    )
    if ending.status != "ok" and order.failures:
        # Before the status: killed in between, the run is repeated in any case.
        order.failures.parent.mkdir(parents=True, exist_ok=True)
        line = {"key": order.key, "attempt": order.attempt, "status": ending.status, "started_at": started_at}
        with order.failures.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    write_status(order.out, status)


class _Waiting:
    """Says once what is waited for, and gives up when the parent is gone."""

    def __init__(self, label: str, parent: int) -> None:
        self._label, self._parent, self._said = label, parent, False

    def __call__(self, holders: str) -> None:
        if os.getppid() != self._parent:
            raise _StopError(1)
        if not self._said:
            say(self._label, f"waits for {holders}")
            self._said = True


def _parse(arguments: Sequence[str]) -> tuple[Order, int]:
    parser = argparse.ArgumentParser(prog="python -m steptrace.train.supervise", description="Supervise one training.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--attempt", type=int, required=True, help="number of this attempt, from 1")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="take one such device for as long as the child runs")
    parser.add_argument("--devices", type=int, default=1, help="take that many GPUs")
    parser.add_argument("--expect", action="append", default=[], help="a file a good run leaves in its folder")
    parser.add_argument(
        "--timeout", type=float, dest="timeout_s", help="seconds after which the child is stopped; 0: never"
    )
    parser.add_argument("--failures", type=Path, help="file that gets a line for every failure")
    parser.add_argument(
        "--key",
        default="",
        help="digest of the run: failures are noted under it, and a good result of it is taken instead of a new run",
    )
    parser.add_argument("--label", default="", help="what to call the run in progress lines")
    parser.add_argument("--log", default="train.log", help="file in the folder that gets the child's output")
    parser.add_argument("--show-log", action="store_true", help="if it fails, all of its output to stderr")
    parser.add_argument(
        "--parent", type=int, default=os.getppid(), help="process to live no longer than; without it the one found now"
    )
    parser.add_argument("--server", default="", help="be forked from the server of that name, where that can be")
    parser.add_argument("command", nargs="+", help="the training, after --")
    options = vars(parser.parse_args(arguments))
    parent = options.pop("parent")
    return Order(**{**options, "label": options["label"] or options["out"].name}), parent


if __name__ == "__main__":
    sys.exit(main())
