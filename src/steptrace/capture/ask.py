"""The asking side: which processes are meant, at which step they begin, and what becomes of it. Imports no torch."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from steptrace.capture import identity
from steptrace.capture.control import RECORDING, STEPS, Entry, entries
from steptrace.capture.plan import FINAL, Answer, Process, Request, Settings
from steptrace.errors import CaptureError

#: How long the ranks' steps are watched to learn how fast they go, and how far ahead of them they are asked to begin.
_WATCHED_S: Final = 0.2
_AHEAD_S: Final = 2.0
#: In a shared folder steps and requests are seen once a second, and over a network.
_WATCHED_SHARED_S: Final = 3.0
_AHEAD_SHARED_S: Final = 10.0
_POLL_S: Final = 0.05

_THREE_LINES: Final = (
    "a training with `from steptrace.capture import Capture`, `capture = Capture()` and `capture.step()` in its loop"
)


@dataclass(frozen=True)
class Target:
    """A process that is asked, or could be."""

    entry: Entry
    process: Process

    @property
    def name(self) -> str:
        """What a person calls it."""
        rank = "" if self.process.rank is None else f", rank {self.process.rank}"
        return f"process {self.process.pid}{rank}"

    @property
    def here(self) -> bool:
        """Whether it runs on this machine."""
        return self.process.host == identity.host()

    @property
    def alive(self) -> bool:
        """Whether it still runs; of another machine's processes that is not known, and taken to be so."""
        return not self.here or identity.born(self.process.pid) == self.process.born

    def steps(self) -> int | None:
        """How many steps it has done; None if it has just ended."""
        return self._word(STEPS)

    @property
    def recording(self) -> bool:
        """Whether a capture is under way."""
        return bool(self._word(RECORDING))

    def _word(self, number: int) -> int | None:
        try:
            return self.entry.word(number)
        except OSError:
            return None


def capturable(root: Path) -> list[Target]:
    """All processes of this user that can be captured, by job and rank.

    Raises:
        CaptureError: the control folder is not this user's alone.
    """
    found = [Target(entry, process) for entry, process in entries(root)]
    return sorted(found, key=lambda t: (t.process.job or "", t.process.rank or 0, t.process.host, t.process.pid))


def find(root: Path, pid: int) -> Target:
    """The process with this number on this machine.

    Raises:
        CaptureError: there is none, it is another user's, or it cannot be captured.
    """
    targets = capturable(root)
    found = next((target for target in targets if target.here and target.process.pid == pid), None)
    if found is not None:
        return found
    raise _not_found(pid, targets)


def find_job(root: Path, pid: int) -> list[Target]:
    """All ranks of a job, of which `pid` is one, or their launcher, or another of their ancestors.

    Raises:
        CaptureError: there is no such job.
    """
    targets = capturable(root)
    start = [target for target in targets if target.here and pid in (target.process.pid, *_ancestors(target))]
    if not start:
        raise _not_found(pid, targets)
    jobs = {target.process.job or target.process.pid for target in start}
    if len(jobs) > 1:
        raise CaptureError(
            f"{len(jobs)} jobs were started by it",
            where=f"process {pid}",
            expected="a process of one job",
            next_step="`steptrace capture --list` shows their ranks; name one of them",
        )
    return [target for target in targets if target in start or target.process.job in jobs]


def _ancestors(target: Target) -> list[int]:
    try:
        return [parent.pid for parent in psutil.Process(target.process.pid).parents()]
    except psutil.Error:
        return []


def _not_found(pid: int, targets: Sequence[Target]) -> CaptureError:
    """Why a process cannot be captured."""
    where = f"process {pid}"
    try:
        process = psutil.Process(pid)
        owner, command = process.uids().effective, " ".join(process.cmdline()[:4])
    except psutil.NoSuchProcess:
        return CaptureError(
            "there is no such process", where=where, next_step="`steptrace capture --list` shows what can be captured"
        )
    except psutil.AccessDenied:
        owner, command = None, ""
    if owner != os.geteuid():
        name = "another user" if owner is None else _user_name(owner)
        return CaptureError(f"it belongs to {name}", where=where, next_step="ask as that user")
    below = sorted(target.process.pid for target in targets if target.here and pid in _ancestors(target))
    if below:
        return CaptureError(
            "it cannot be captured itself, but processes that it started can",
            where=where,
            expected=f"one of {', '.join(map(str, below))}",
            next_step=f"steptrace capture --all-ranks {pid}",
        )
    return CaptureError(
        f"it cannot be captured ({command})" if command else "it cannot be captured",
        where=where,
        expected=_THREE_LINES,
        next_step="`steptrace capture --list` shows what can be captured; --control names another control folder",
    )


def _user_name(uid: int) -> str:
    import pwd

    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user {uid}"


def agreed_step(targets: Sequence[Target]) -> int:
    """A step that all targets have yet to come to, when they have all seen the request.

    It lies ahead of the furthest by what they do in about two seconds, and by at least two steps.
    """
    shared = any(target.process.shared for target in targets)
    watched_s, ahead_s = (_WATCHED_SHARED_S, _AHEAD_SHARED_S) if shared else (_WATCHED_S, _AHEAD_S)
    before = [target.steps() or 0 for target in targets]
    time.sleep(watched_s)
    after = [target.steps() or 0 for target in targets]
    rate = max((now - then) / watched_s for now, then in zip(after, before, strict=True))
    return max(after) + 2 + int(rate * ahead_s)


def post(targets: Sequence[Target], folder: Path, settings: Settings, start: int | None) -> str:
    """Ask all targets; returns the request's id.

    Raises:
        CaptureError: one of them cannot be asked. Those before it have been.
    """
    request = f"{time.time_ns()}-{os.getpid()}"
    for target in targets:
        try:
            target.entry.post(Request(request, str(folder), settings, start), shared=target.process.shared)
        except OSError as error:
            raise CaptureError(
                f"it has ended, or cannot be asked ({error.strerror or error})",
                where=target.name,
                next_step="`steptrace capture --list` shows what can be captured",
            ) from error
    return request


def wait(targets: Sequence[Target], request: str, timeout_s: float) -> list[tuple[Target, Answer]]:
    """What has become of the request, target by target.

    A target that has not even seen it after `timeout_s` is not asked any longer.
    """
    until = time.monotonic() + timeout_s
    last: dict[Target, Answer] = {}
    while True:
        for target in targets:
            if target not in last or last[target].state not in FINAL:
                alive = target.alive
                answer = target.entry.read_answer(request)
                if answer is not None:
                    last[target] = answer
                elif not alive:
                    last[target] = Answer(request, "failed", "the process ended without an answer")
        open_ones = [target for target in targets if target not in last or last[target].state not in FINAL]
        if not open_ones:
            break
        if time.monotonic() > until:
            last.update({target: _given_up(target, request, last.get(target), timeout_s) for target in open_ones})
            break
        time.sleep(_POLL_S)
    return [(target, last[target]) for target in targets]


def _given_up(target: Target, request: str, last: Answer | None, timeout_s: float) -> Answer:
    if target.entry.withdraw(request):
        why = f"no step ended within {timeout_s:g} s; the request is withdrawn"
        return Answer(request, "refused", why)
    return Answer(request, "open", f"not done after {timeout_s:g} s" + (f" ({last.message})" if last else ""))
