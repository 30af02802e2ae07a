"""Threads that a program starts during a prediction.

PyTorch's modes belong to the thread that enters them, so each thread of the program enters the virtual device's modes
when it begins. A pool's thread that began before the prediction enters them for each piece of work. A thread's own
stack does not reach the line that started the thread, so that line's stack is kept with the thread or its work.
"""

import _thread
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures.thread import _WorkItem
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final

from steptrace.engine.frames import is_python_s_own
from steptrace.predict.backend import Replacements
from steptrace.predict.places import Stack, stack_of, started_at

#: Seconds between two checks of a thread that is waited for.
_LOOK_S: Final = 0.002
#: Seconds after which a thread is no longer waited for.
_MOST_S: Final = 1.0
#: The attribute of a thread, or of a piece of work, with the stack that started it.
_BEGUN: Final = "_steptrace_begun"


class _This(threading.local):
    """The state of this thread: whether it has entered the modes, and whether threads that it starts are plain."""

    follows = False
    starts_plain = False


_this = _This()


#: The stack of a thread, or of work, that does not belong to the program.
_PLAIN: Final = Stack(None, None, whole=False)


@contextmanager
def plain_threads() -> Iterator[None]:
    """Within this context, started threads compute on the CPU for the virtual device itself, and are not followed."""
    before = _this.starts_plain
    _this.starts_plain = True
    try:
        yield
    finally:
        _this.starts_plain = before


@contextmanager
def following(modes: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
    """Follow this thread within the context: it enters the modes and leaves them at the end."""
    with modes():
        _this.follows = True
        try:
            yield
        finally:
            _this.follows = False


def replacements(modes: Callable[[], AbstractContextManager[object]]) -> Replacements:
    """The replacements in Python's threads while a prediction is active; each thread enters `modes` while it runs."""
    start = threading.Thread.start
    bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
    make_work = _WorkItem.__init__
    work = _WorkItem.run
    start_new = _thread.start_new_thread

    @contextmanager
    def begun_at(stack: Stack | None) -> Iterator[None]:
        if stack is _PLAIN:
            yield
            return
        before = started_at.stack
        started_at.stack = stack
        try:
            if _this.follows:
                yield
            else:
                with following(modes):
                    yield
        finally:
            started_at.stack = before

    @wraps(start)
    def starts(self: Any) -> None:
        setattr(self, _BEGUN, _beginning())
        start(self)

    @wraps(bootstrap)
    def runs(self: Any) -> None:
        with begun_at(getattr(self, _BEGUN, None)):
            bootstrap(self)

    @wraps(make_work)
    def work_is_made(self: Any, *args: Any, **kwargs: Any) -> None:
        make_work(self, *args, **kwargs)
        setattr(self, _BEGUN, _beginning())

    @wraps(work)
    def works(self: Any, *args: Any) -> None:
        with begun_at(getattr(self, _BEGUN, None)):
            work(self, *args)

    def start_new_thread(function: Any, args: Any, kwargs: Any = None, /) -> int:
        stack = _beginning()

        def followed() -> None:
            with begun_at(stack):
                function(*args, **(kwargs or {}))

        return start_new(followed, ())

    return {
        (threading.Thread, "start"): starts,
        (threading.Thread, "_bootstrap_inner"): runs,
        (_WorkItem, "__init__"): work_is_made,
        (_WorkItem, "run"): works,
        (_thread, "start_new_thread"): start_new_thread,
    }


def _beginning() -> Stack:
    """The stack of the program that starts a thread, or gives it work."""
    return _PLAIN if _this.starts_plain else stack_of(sys._getframe(2))


def stop_others() -> None:
    """Let all other threads wait for the end of the process at their next operator, since it would fail."""
    _Ended.main = threading.get_ident()


class _Ended:
    """The thread that ends the process; None before."""

    main: int | None = None


def stop_if_ended() -> None:
    """Wait for ever if another thread is ending the process; otherwise return at once."""
    while _Ended.main not in (None, threading.get_ident()):
        time.sleep(_MOST_S)


class Helper:
    """A thread other than the training's that operates on the device."""

    def __init__(self) -> None:
        self._ident = threading.get_ident()
        self._native_id = threading.get_native_id()
        #: Whether it works on without waiting for the training; then the training does not wait for it either.
        self.is_free = False

    def is_alive(self) -> bool:
        """Whether the thread has not ended."""
        return self._ident in sys._current_frames()

    def waits_at(self) -> tuple[int, int] | None:
        """The frame and instruction of Python's own modules at which the thread is off the processor; None elsewhere.

        Queues, locks, pools and futures wait there.
        """
        frame = sys._current_frames().get(self._ident)
        if frame is None or not is_python_s_own(frame.f_code.co_filename) or self._is_running():
            return None
        return id(frame), frame.f_lasti

    def _is_running(self) -> bool:
        """Whether the thread runs or is ready to run, by /proc; false on systems without it."""
        try:
            text = Path(f"/proc/self/task/{self._native_id}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return not text.rpartition(")")[2].split()[0].startswith("S")


def settle(helpers: Collection[Helper]) -> None:
    """Wait until the threads have finished their work, so that a step's syncs in them count for that step.

    A thread that fills a queue makes the next batch during the step or after it, and has finished when the queue is
    full. A thread that is still working after `_MOST_S` seconds is never waited for again.
    """
    before: dict[Helper, tuple[int, int] | None] = {helper: None for helper in helpers if not helper.is_free}
    end = time.monotonic() + _MOST_S
    while working := _still_working(before):
        if time.monotonic() > end:
            for helper in working:
                helper.is_free = True
            return
        time.sleep(_LOOK_S)


def _still_working(before: dict[Helper, tuple[int, int] | None]) -> list[Helper]:
    """The threads that have moved since the last check. `before` holds the places where they waited, and is updated."""
    working = []
    for helper, place in before.items():
        now = helper.waits_at()
        if helper.is_alive() and (now is None or now != place):
            working.append(helper)
        before[helper] = now
    return working
