"""The asking side: which processes are meant, at which step they begin, and what becomes of it. Imports no torch."""

import json
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil

from steptrace.capture.control import Entry, entries, is_alive
from steptrace.capture.recording import Request, Settings
from steptrace.errors import CaptureError
from steptrace.exchange import read_own

#: How far ahead of the ranks they are asked to begin: a request is seen within a second, over a network later.
_AHEAD_S: Final = 2.0
_AHEAD_OF_HOSTS_S: Final = 10.0
_POLL_S: Final = 0.05
_SEE_LIST: Final = "`steptrace capture --list` shows what can be captured"


def find(root: Path, pid: int, *, all_ranks: bool = False) -> list[Entry]:
    """The process with this number on this machine; or all ranks of its job, of which it may also be an ancestor.

    Raises:
        CaptureError: there is none, it is another user's, or it cannot be captured.
    """
    known = entries(root)
    here = [entry for entry in known if entry.process.host == socket.gethostname()]
    below = [entry for entry in here if pid in _with_ancestors(entry.process.pid)]
    found = [entry for entry in below if all_ranks or entry.process.pid == pid]
    if not found:
        raise _not_found(pid, [str(entry.process.pid) for entry in below])
    if not all_ranks:
        return found
    jobs = {entry.process.place.job or entry.path for entry in found}
    if len(jobs) > 1:
        raise CaptureError(
            f"{len(jobs)} jobs were started by it", where=f"process {pid}", next_step=f"{_SEE_LIST}; name a rank"
        )
    return [entry for entry in known if entry in found or entry.process.place.job in jobs]


def _with_ancestors(pid: int) -> list[int]:
    try:
        return [pid, *(parent.pid for parent in psutil.Process(pid).parents())]
    except psutil.Error:
        return [pid]


def _not_found(pid: int, below: Sequence[str]) -> CaptureError:
    """Why a process cannot be captured."""
    what, expected = "it cannot be captured", "a training with `capture.step()` in its loop: see docs/capture.md"
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


def agreed_step(ranks: Sequence[Entry]) -> int:
    """A step that all ranks have yet to come to when they have all seen the request."""
    ahead_s = _AHEAD_S if len({rank.process.host for rank in ranks}) == 1 else _AHEAD_OF_HOSTS_S
    agreed = 0
    for process in (rank.process for rank in ranks):
        seconds = min(max(time.time() - process.at, 0), 1) + ahead_s
        agreed = max(agreed, process.steps + 2 + (int(seconds * 1e9 / process.step_ns) if process.step_ns else 0))
    return agreed


def post(asked: Sequence[Entry], folder: Path, settings: Settings, start: int | None) -> Request:
    """Ask all processes to record into `folder`, which is made.

    Raises:
        CaptureError: the folder cannot be made, or one of the processes has ended. Those before it have been asked.
    """
    request = Request(f"{time.time_ns()}-{os.getpid()}", str(folder), settings, start)
    where = str(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for entry in asked:
            where = entry.name
            entry.post(request)
    except OSError as error:
        raise CaptureError(f"it cannot be asked, or written to ({error.strerror})", where=where) from error
    return request


def wait(asked: Sequence[Entry], request: Request, timeout_s: float) -> list[tuple[str, str]]:
    """What has become of the request, process by process: a state and a message.

    One that has not even seen it after `timeout_s` is not asked any longer.
    """
    until = time.monotonic() + timeout_s
    while True:
        over = f"{timeout_s:g} s" if time.monotonic() > until else None
        found = [answer for entry in asked if (answer := _answer(entry, request, over)) is not None]
        if len(found) == len(asked):
            return found
        time.sleep(_POLL_S)


def _answer(entry: Entry, request: Request, over: str | None) -> tuple[str, str] | None:
    alive = is_alive(entry.path)  # asked first: the record is written before the end
    record = read_own(request.files(entry.process.place)[1])
    if record is not None and (answer := json.loads(record))["request"] == request.id:
        return answer["state"], answer["message"]
    if not alive:
        return "failed", "the process ended without an answer"
    if over and list(entry.take(request.id)):
        return "refused", f"no step ended within {over}; the request is withdrawn"
    return ("open", f"not done after {over}") if over else None
