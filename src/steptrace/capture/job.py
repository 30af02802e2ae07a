"""`Capture`: the training's side. Nothing here ends the training: what goes wrong is logged and told to who asked."""

import atexit
import logging
import os
import signal
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, Final

from steptrace.capture import identity
from steptrace.capture.control import RECORDING, STEPS, WANTED, Entry, State, default_root
from steptrace.capture.plan import BY_SIGNAL, Answer, Process, Request, Settings, new_folder
from steptrace.capture.task import Task
from steptrace.errors import CaptureError, SteptraceError

_LOG: Final = logging.getLogger("steptrace.capture")
#: How often a control folder that several machines share is looked into.
_SHARED_EVERY_S: Final = 1.0

#: This process's `Capture`: at most one, since its control folder is named by the process.
_CURRENT: "list[weakref.ref[Capture]]" = []


class Capture:
    """Makes a training loop capturable: call `step` once at the end of each step.

    A process has one; a later one takes the earlier one's place. Not for several threads.

    Args:
        folder: where traces go unless the command line names a folder; each capture gets a folder of its own there.
        settings: what is recorded unless the command line says otherwise.
        signum: the signal that asks for a capture, None for none. A handler that is there already is called too.
        control: the control folder; default: see `steptrace.capture.control`.
        shared: whether other machines see that folder too, so that all ranks of a job can be asked from one of them;
            it is then looked into once a second.

    Raises:
        CaptureError: a signal is wanted, but this is not the main thread.
    """

    def __init__(
        self,
        folder: str | Path = "captures",
        *,
        settings: Settings | None = None,
        signum: signal.Signals | None = signal.SIGUSR1,
        control: str | Path | None = None,
        shared: bool = False,
    ) -> None:
        if signum is not None and threading.current_thread() is not threading.main_thread():
            raise CaptureError(
                "signals can only be handled on the main thread, and this is another",
                where="Capture",
                next_step="pass signum=None and ask with `steptrace capture PID`, or make it on the main thread",
            )
        while _CURRENT:
            if (earlier := _CURRENT.pop()()) is not None:
                earlier.close()
        _CURRENT.append(weakref.ref(self))
        self._folder = Path(folder).absolute()
        self._settings = settings or Settings()
        self._pid = os.getpid()
        self._since = time.time()
        self._place = identity.place()
        self._task: Task | None = None
        self._closed = False
        self._signals = 0
        self._looked_at = 0.0
        self._shared = shared
        self._entry, self._state, self._lock = self._enter(default_root() if control is None else Path(control))
        self._words = self._state.words
        # The first step looks again: by then a distributed job knows its ranks.
        self._words[WANTED] = 1
        self._signum = signum
        self._handler_before: Any = None if signum is None else signal.signal(signum, self._on_signal)
        atexit.register(self.close)
        _cut_off_in_children(self)

    def step(self) -> None:
        """A step has ended. Almost free unless a capture is asked for; never raises."""
        words = self._words
        words[STEPS] += 1
        if words[WANTED]:
            self._attend(words)

    def close(self) -> None:
        """End a capture under way, with the steps recorded so far, and be no longer capturable. `step` may go on."""
        if os.getpid() != self._pid or self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        with suppress(ValueError):  # not on the main thread
            if self._signum is not None and signal.getsignal(self._signum) == self._on_signal:
                signal.signal(self._signum, self._handler_before or signal.SIG_DFL)
        if self._task is not None:
            self._task.close()
            self._task = None
        try:
            if self._entry is not None:
                for request in self._entry.take():
                    self._refuse(request, "the training has ended")
                self._entry.close()
        except (OSError, SteptraceError) as error:
            _LOG.warning("the control folder was not cleared away: %s", error)
        self._cut_off()

    def __enter__(self) -> "Capture":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _enter(self, root: Path) -> tuple[Entry | None, State, int | None]:
        """Make the control folder's entry. A job must not fail for want of one: then only the signal is left."""
        try:
            entry = Entry.of_this_process(root.absolute())
            state, lock = entry.make_state(shared=self._shared), entry.lock()
            self._introduce(entry)
        except (OSError, SteptraceError) as error:
            _LOG.warning("`steptrace capture` will not find this process, only a signal will: %s", error)
            return None, State(), None
        return entry, state, lock

    def _introduce(self, entry: Entry) -> None:
        entry.write_process(
            Process(
                pid=self._pid,
                born=identity.born(self._pid),
                host=identity.host(),
                **asdict(self._place),
                script=identity.script(),
                command=identity.command_line(),
                since=self._since,
                folder=str(self._folder),
                settings=self._settings,
                shared=self._shared,
            )
        )

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() == self._pid:
            self._signals += 1
            self._words[WANTED] = 1
        if callable(self._handler_before):
            self._handler_before(signum, frame)

    def _attend(self, words: "memoryview[int]") -> None:
        """What a step does when there is something to do, or may be."""
        words[WANTED] = 0  # taken back before looking, so that nothing asked meanwhile is missed
        try:
            if self._task is not None:
                self._task.step(words[STEPS])
                self._task = None if self._task.done else self._task
            if self._is_time_to_look():
                self._look(words[STEPS])
        except Exception as error:
            _LOG.warning("capture: %s", error, exc_info=error)
        words[RECORDING] = int(self._task is not None and self._task.is_recording)
        if self._task is not None or self._shared:
            words[WANTED] = 1

    def _is_time_to_look(self) -> bool:
        """Always, except in a shared folder: there the word is always set, since no other machine can set it."""
        if not self._shared or self._signals:
            return True
        now = time.monotonic()
        if now - self._looked_at < _SHARED_EVERY_S:
            return False
        self._looked_at = now
        return True

    def _look(self, step: int) -> None:
        """Take what is asked."""
        asked = self._asked()
        if self._signals:
            self._signals = 0
            asked.append(self._request_by_signal())
        for request in asked:
            if self._task is not None:
                self._refuse(request, "a capture is under way in this process")
            elif isinstance(request, str):
                self._refuse(request, "the request is not valid, or not from this user")
            else:
                task = Task(request, self._place, self._entry, step)
                self._task = None if task.done else task

    def _asked(self) -> list[Request | str]:
        """What the command line asks. A control folder that is gone must not take the signal with it."""
        place, known = identity.place(), self._place
        self._place = place
        if self._entry is None:
            return []
        try:
            self._state.publish()
            if place != known:
                self._introduce(self._entry)
            return self._entry.take()
        except (OSError, SteptraceError) as error:
            gone = isinstance(error, FileNotFoundError)
            _LOG.warning("control folder: %s%s", error, ": from now on only a signal asks this process" if gone else "")
            if gone:
                self._entry, self._shared = None, False
            return []

    def _request_by_signal(self) -> Request:
        folder = str(new_folder(self._folder, self._pid))
        return Request(f"signal-{time.time_ns()}", folder, self._settings, asked_by=BY_SIGNAL)

    def _refuse(self, request: Request | str, why: str) -> None:
        _LOG.warning("no capture: %s", why)
        if isinstance(request, Request) and request.asked_by == BY_SIGNAL:
            return
        if self._entry is not None:
            self._entry.answer(Answer(request if isinstance(request, str) else request.id, "refused", why))

    def _cut_off(self) -> None:
        """Go on counting, for nobody."""
        self._state.close()
        self._state = State()
        self._words = self._state.words
        self._entry, self._task, self._shared = None, None, False
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _cut_off_in_children(capture: Capture) -> None:
    """A forked child, such as a loader's worker, shares the words; its copy must neither count nor answer."""
    reference = weakref.ref(capture)

    def cut_off() -> None:
        if (copy := reference()) is not None:
            copy._cut_off()

    os.register_at_fork(after_in_child=cut_off)
