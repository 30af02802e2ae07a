"""Inside the program: counts its steps, and records those that `steptrace capture PID` requests.

Errors here never reach the program: they are logged, and written into the capture's record.
"""

import atexit
import logging
import os
import shutil
import sys
import time
from collections import deque
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from time import perf_counter_ns
from typing import Final

from steptrace.engine.measure import Phases
from steptrace.engine.recording import Before, Recording, Request
from steptrace.errors import SteptraceError
from steptrace.launch.control_folder import Process, start_of
from steptrace.launch.probe import Probe
from steptrace.rank import this_rank

_LOG: Final = logging.getLogger("steptrace.capture")
#: Seconds between two looks into the control folder.
_LOOK_NS: Final = 1_000_000_000
#: Seconds to wait after an error.
_RETRY_NS: Final = 60_000_000_000
#: How many of the latest steps' times are kept for the record.
_RECENT: Final = 64


def capture(probe: Probe) -> Phases:
    """Listen until the program ends; the parts of a step are labelled only during a capture."""
    yield
    # Not before the first step: only programs that train can be captured, and only now the rank is set.
    listener = Listener(probe.settings.captures)
    while True:
        listener.step()
        probe.hooks.labels = listener.recording
        yield


class Listener:
    """Makes this process capturable.

    Args:
        folder: where traces go unless the command line names a folder; each capture gets a folder of its own there.
    """

    def __init__(self, folder: str) -> None:
        script = " ".join(sys.argv) if sys.argv and sys.argv[0] else Path(sys.executable).name
        pid, where = os.getpid(), this_rank()
        self._process = Process(
            pid, start_of(pid) or "", script, time.time(), folder, rank=where.rank, world_size=where.world_size
        )
        self._look_at = 0
        self._ends: deque[int] = deque(maxlen=_RECENT + 1)
        self._recording: Recording | None = None
        atexit.register(self.close)

    @property
    def recording(self) -> bool:
        """Whether a capture is under way."""
        return self._recording is not None

    def step(self) -> None:
        """To be called at the end of each step. Almost free without a capture; never raises."""
        now = perf_counter_ns()
        self._ends.append(now)
        self._process.steps += 1
        if self._recording is not None:
            self._recording.step(self._process.steps)
            if self._recording.done:
                self._recording, self._look_at = None, 0
                self._ends.clear()  # the profiler has slowed these steps down
        if now >= self._look_at:
            self._look_at = now + _LOOK_NS
            self._look()

    def _look(self) -> None:
        try:
            if request := self._process.take():
                self._accept(request)
            self._process.recording = self.recording
            self._process.publish()
        except (OSError, SteptraceError) as error:  # never a reason for the program to fail
            _LOG.warning("`steptrace capture` cannot reach this process: %s; next try in a minute", error)
            self._look_at += _RETRY_NS

    def _accept(self, request: Request) -> None:
        recording = Recording(request, lambda: Before([end - start for start, end in pairwise(self._ends)]))
        if self._recording is not None:
            recording.close("a capture is under way in this process")
            return
        recording.step(self._process.steps)
        self._recording = None if recording.done else recording

    def close(self) -> None:
        """End a running capture with the steps recorded so far, and leave the control folder."""
        if os.getpid() != self._process.pid:  # a forked child
            return
        if self._recording is not None:
            self._recording.close()
        with suppress(OSError, SteptraceError):
            if request := self._process.take():
                Recording(request).close("the training has ended")
            shutil.rmtree(self._process.path)
