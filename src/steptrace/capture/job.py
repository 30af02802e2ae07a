"""`Capture`: the training's side. Nothing here ends the training: what goes wrong is logged and told to who asked."""

import atexit
import itertools
import logging
import os
import shutil
import signal
import statistics
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns
from types import FrameType
from typing import Any, Final

from steptrace.capture.control import Entry, Process, default_root, enter
from steptrace.capture.recording import Recording, Request, Settings, new_folder, place
from steptrace.errors import CaptureError, SteptraceError

_LOG: Final = logging.getLogger("steptrace.capture")
#: How often the control folder is looked into.
_LOOK_NS: Final = 1_000_000_000
_NEVER: Final = 1 << 62
#: How many of the latest steps' times are kept.
_RECENT: Final = 64

#: This process's `Capture`s that are not closed: at most one.
_OPEN: "list[Capture]" = []


class Capture:
    """Makes a training loop capturable: call `step` once at the end of each step.

    A process has one; a later one takes the earlier one's place. Not for several threads.

    Args:
        folder: where traces go unless the command line names a folder; each capture gets a folder of its own there.
        settings: what is recorded unless the command line says otherwise.
        signum: the signal that asks for a capture, None for none. A handler that is there already is called too.
        control: the control folder; default: see `steptrace.capture.control`. Through one that several machines see,
            all ranks of a job can be asked from any of them.

    Example:
        capture = Capture("captures")  # once, before the loop
        for batch in loader:
            train_step(batch)
            capture.step()  # at the end of each step

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
    ) -> None:
        if signum is not None and threading.current_thread() is not threading.main_thread():
            next_step = "pass signum=None and ask with `steptrace capture PID`, or make it on the main thread"
            raise CaptureError("signals can only be handled on the main thread", where="Capture", next_step=next_step)
        while _OPEN:
            _OPEN[-1].close()
        script = " ".join(sys.argv) if sys.argv and sys.argv[0] else Path(sys.executable).name
        where, what = str(Path(folder).absolute()), settings or Settings()
        self._process = Process(os.getpid(), place(), script, time.time(), where, what)
        self._steps = self._look_at = self._folder_at = self._signals = 0
        self._ends: deque[int] = deque(maxlen=_RECENT + 1)
        self._add_end = self._ends.append
        self._recording: Recording | None = None
        self._entry: Entry | None = None
        self._lock: int | None = None
        try:
            root = default_root() if control is None else Path(control)
            self._entry, self._lock = enter(root.absolute(), self._process)
        except (OSError, SteptraceError) as error:  # a job must not fail for want of it
            _LOG.warning("`steptrace capture` will not find this process, only a signal will: %s", error)
        self._signum = signum
        self._handler_before: Any = None if signum is None else signal.signal(signum, self._on_signal)
        _OPEN.append(self)
        atexit.register(self.close)

    def step(self) -> None:
        """A step has ended. Almost free unless a capture is asked for; never raises.

        Example:
            train_step(batch)
            capture.step()
        """
        now = perf_counter_ns()
        self._add_end(now)
        self._steps += 1
        if now >= self._look_at:
            self._look(now)

    def close(self) -> None:
        """End a capture under way, with the steps recorded so far, and be no longer capturable. `step` may go on.

        Example:
            capture.close()  # or `with Capture("captures") as capture:` around the loop
        """
        if self not in _OPEN:
            return
        _OPEN.remove(self)
        atexit.unregister(self.close)
        with suppress(ValueError):  # not on the main thread
            if self._signum is not None and signal.getsignal(self._signum) == self._on_signal:
                signal.signal(self._signum, self._handler_before or signal.SIG_DFL)
        if self._recording is not None:
            self._recording.close()
        try:
            if self._entry is not None:
                for request in self._entry.take():
                    Recording(request).close("the training has ended")
                shutil.rmtree(self._entry.path)
        except OSError as error:
            _LOG.warning("the control folder was not cleared away: %s", error)
        self._detach()

    def __enter__(self) -> "Capture":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if self in _OPEN:
            self._signals += 1
            self._look_at = 0
        if callable(self._handler_before):
            self._handler_before(signum, frame)

    def _look(self, now: int) -> None:
        """What a step does once a second, after a signal, and at each step of a capture."""
        if self._recording is not None:
            self._recording.step(self._steps)
            if self._recording.done:
                self._recording, self._folder_at = None, 0  # which is said now
                self._ends.clear()  # the profiler has slowed these steps down
        try:
            if self._signals:
                self._signals = 0
                folder = new_folder(self._process.folder, self._process.pid)
                self._accept(Request(f"signal-{now}", folder, self._process.settings, asked_by="signal"))
            if self._entry is not None and now >= self._folder_at:
                self._folder_at = now + _LOOK_NS
                for request in self._entry.take():
                    self._accept(request)
                self._publish(self._entry)
        except Exception as error:
            gone = isinstance(error, FileNotFoundError)
            next_time = "from now on only a signal asks this process" if gone else "tried again in a minute"
            _LOG.warning("control folder: %s: %s", error, next_time)
            self._entry, self._folder_at = (None if gone else self._entry), now + 60 * _LOOK_NS
        self._look_at = 0 if self._recording is not None else _NEVER if self._entry is None else self._folder_at

    def _accept(self, request: Request) -> None:
        recording = Recording(request, self._recent_ns)
        if self._recording is not None:
            recording.close("a capture is under way in this process")
            return
        recording.step(self._steps)
        self._recording = None if recording.done else recording

    def _publish(self, entry: Entry) -> None:
        """Say how far this process is."""
        process = self._process
        process.place, process.steps = place(), self._steps
        if self._recording is None and (recent := self._recent_ns()):
            process.step_ns = round(statistics.median(recent))
        process.recording = self._recording is not None
        entry.publish()

    def _recent_ns(self) -> list[int]:
        return [end - start for start, end in itertools.pairwise(self._ends)]

    def _detach(self) -> None:
        """Go on counting, for nobody."""
        self._entry, self._recording, self._look_at = None, None, _NEVER
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _detach_in_children() -> None:
    """A forked child, such as a loader's worker, must neither answer nor hold the lock."""
    while _OPEN:
        _OPEN.pop()._detach()


os.register_at_fork(after_in_child=_detach_in_children)
