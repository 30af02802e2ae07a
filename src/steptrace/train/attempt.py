"""One attempt at a run: a command as a child, followed to its end, and a status that says how it ended.

`steptrace.train.supervise` is its command line. One attempt at a time is made in a folder, whoever makes it and on
whatever machine.
"""

import contextlib
import json
import os
import select
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from steptrace import deadline
from steptrace.documents.run import LOG_FILE, Status
from steptrace.errors import RecordError, SteptraceError
from steptrace.record import FINISHED_FILE, STATUS_FILE, read_status, write_status
from steptrace.terminal import printable
from steptrace.train.devices import acquire, holder, try_lock
from steptrace.train.endings import Ending, Log, classify, kernel_oom_kills, last_lines, say
from steptrace.train.lifetime import StopError
from steptrace.train.process_tree import Guarded

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
    LOG_FILE,
)
#: Locked as long as an attempt, or anything it started, is at work in the folder.
LOCK_FILE = ".lock"
_POLL_S = 0.2


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
    log: str = LOG_FILE
    show_log: bool = False


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
            raise StopError(1)
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


def _record(order: Order, ending: Ending, tail: Sequence[str], started_at: str, wall_s: float) -> None:
    status = Status(
        **asdict(ending),
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
            raise StopError(1)
        if not self._said:
            say(self._label, f"waits for {holders}")
            self._said = True
