"""`Capture`: the training's side. Nothing here ends the training: what goes wrong is logged and told to who asked."""

import atexit
import itertools
import logging
import os
import shutil
import statistics
import sys
import time
from collections import deque
from contextlib import AbstractContextManager
from pathlib import Path
from time import perf_counter_ns
from typing import Final

from steptrace.capture.control import Process, default_root
from steptrace.errors import SteptraceError
from steptrace.place import place
from steptrace.recording import Recording, Request, Settings

_LOG: Final = logging.getLogger("steptrace.capture")
#: How often the control folder is looked into.
_LOOK_NS: Final = 1_000_000_000
_NEVER: Final = 1 << 62
#: How many of the latest steps' times are kept.
_RECENT: Final = 64

#: This process's `Capture`s that are not closed: at most one.
_OPEN: "list[Capture]" = []


def is_capturable() -> bool:
    """Whether this process has a `Capture` that is not closed."""
    return bool(_OPEN)


class Capture(AbstractContextManager["Capture"]):
    """Makes a training loop capturable: call `step` once at the end of each step.

    A process has one; a later one takes the earlier one's place. Not for several threads.

    Args:
        folder: where traces go unless the command line names a folder; each capture gets a folder of its own there.
        settings: what is recorded unless the command line says otherwise.
        control: the control folder; default: see `steptrace.capture.control`. Through one that several machines see,
            all ranks of a job can be asked from any of them.

    Example:
        capture = Capture("captures")  # once, before the loop
        for batch in loader:
            train_step(batch)
            capture.step()  # at the end of each step
    """

    def __init__(
        self,
        folder: str | Path = "captures",
        *,
        settings: Settings | None = None,
        control: str | Path | None = None,
    ) -> None:
        while _OPEN:
            _OPEN[-1].close()
        script = " ".join(sys.argv) if sys.argv and sys.argv[0] else Path(sys.executable).name
        where, what = str(Path(folder).absolute()), settings or Settings()
        self._process = Process(os.getpid(), place(), script, time.time(), where, what)
        self._steps = self._look_at = 0
        self._folder_at = 0  # when to look into the control folder
        self._ends: deque[int] = deque(maxlen=_RECENT + 1)
        self._add_end = self._ends.append
        self._recording: Recording | None = None
        self._lock: int | None = None
        try:
            self._lock = self._process.enter((default_root() if control is None else Path(control)).absolute())
        except (OSError, SteptraceError) as error:  # a job must not fail for want of it
            _LOG.warning("`steptrace capture` will not find this process: %s", error)
            self._look_at = self._folder_at = _NEVER
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
        if self._recording is not None:
            self._recording.close()
        try:
            if self._folder_at < _NEVER:
                for request in self._process.take():
                    Recording(request).close("the training has ended")
                shutil.rmtree(self._process.path)
        except OSError as error:
            _LOG.warning("the control folder was not cleared away: %s", error)
        self._detach()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def recording(self) -> bool:
        """Whether a capture is under way."""
        return self._recording is not None

    def _look(self, now: int) -> None:
        """What a step does once a second, and at each step of a capture."""
        if self._recording is not None:
            self._recording.step(self._steps)
            if self._recording.done:
                self._recording = None
                self._ends.clear()  # the profiler has slowed these steps down
                if self._folder_at < _NEVER:
                    self._folder_at = now  # it is said at once
        try:
            if now >= self._folder_at:
                self._folder_at = now + _LOOK_NS
                for request in self._process.take():
                    self._accept(request)
                self._publish()
        except Exception as error:
            gone = isinstance(error, FileNotFoundError)
            next_time = "this process cannot be captured any more" if gone else "tried again in a minute"
            _LOG.warning("control folder: %s: %s", error, next_time)
            self._folder_at = _NEVER if gone else now + 60 * _LOOK_NS
        self._look_at = self._folder_at if self._recording is None else 0

    def _accept(self, request: Request) -> None:
        recording = Recording(request, self._recent_ns)
        if self._recording is not None:
            recording.close("a capture is under way in this process")
            return
        recording.step(self._steps)
        self._recording = None if recording.done else recording

    def _publish(self) -> None:
        """Say how far this process is."""
        process = self._process
        process.place, process.steps, process.recording = place(), self._steps, self._recording is not None
        if self._recording is None and (recent := self._recent_ns()):
            process.step_ns = round(statistics.median(recent))
        process.publish()

    def _recent_ns(self) -> list[int]:
        return [end - start for start, end in itertools.pairwise(self._ends)]

    def _detach(self) -> None:
        """Go on counting, for nobody."""
        self._recording, self._look_at = None, _NEVER
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _detach_in_children() -> None:
    """A forked child, such as a loader's worker, must neither answer nor hold the lock."""
    while _OPEN:
        _OPEN.pop()._detach()


os.register_at_fork(after_in_child=_detach_in_children)
