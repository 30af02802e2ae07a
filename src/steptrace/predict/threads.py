"""Threads that a program starts during a prediction.

PyTorch's modes belong to the thread that enters them, so each thread of the program enters those of the virtual device
when it begins; work for a pool's thread enters them where that thread began before the prediction did. A thread's own
stack ends where it was started: the line that started it, or that gave it its work, is remembered.
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

#: Seconds between two looks at a thread that is waited for, and seconds after which nobody waits for it any longer.
_LOOK_S: Final = 0.002
_MOST_S: Final = 1.0
#: Where a thread, or a piece of work, remembers the stack that began it.
_BEGUN: Final = "_steptrace_begun"


class _This(threading.local):
    """This thread: whether it has entered the modes, and whether threads that it starts shall."""

    follows = False
    starts_plain = False


_this = _This()


#: In place of a stack: the thread, or the work, is none of the program's.
_PLAIN: Final = Stack(None, None, whole=False)


@contextmanager
def plain_threads() -> Iterator[None]:
    """Threads that are started within compute for the virtual device itself, on the CPU, and are not followed."""
    before, _this.starts_plain = _this.starts_plain, True
    try:
        yield
    finally:
        _this.starts_plain = before


@contextmanager
def following(modes: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
    """This thread has entered the modes until it leaves the block."""
    with modes():
        _this.follows = True
        try:
            yield
        finally:
            _this.follows = False


def replacements(modes: Callable[[], AbstractContextManager[object]]) -> Replacements:
    """What of Python's threads is another one while a prediction is active; a thread enters `modes` while it runs."""
    start, bootstrap = threading.Thread.start, threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
    make_work, work, start_new = _WorkItem.__init__, _WorkItem.run, _thread.start_new_thread

    @contextmanager
    def begun_at(stack: Stack | None) -> Iterator[None]:
        if stack is _PLAIN:
            yield
            return
        before, started_at.stack = started_at.stack, stack
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
    """The process ends: a thread that still operates waits from now on until it has ended, rather than fail."""
    _Ended.main = threading.get_ident()


class _Ended:
    """The thread that ends the process; None before."""

    main: int | None = None


def stop_if_ended() -> None:
    """Wait for the process's end, unless this thread ends it or it goes on."""
    while _Ended.main not in (None, threading.get_ident()):
        time.sleep(_MOST_S)


class Helper:
    """A thread that operates on the device beside that of the training."""

    def __init__(self) -> None:
        self._ident, self._native_id = threading.get_ident(), threading.get_native_id()
        #: Whether it never waits for the training, so that nobody waits for it.
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
        """Whether the system says that the thread runs, or could; only Linux says so."""
        try:
            text = Path(f"/proc/self/task/{self._native_id}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return not text.rpartition(")")[2].split()[0].startswith("S")


def settle(helpers: Collection[Helper]) -> None:
    """Wait until threads have done what they were asked for, so that a step's syncs in them are that step's.

    A thread that fills a queue makes the next batch while the step runs or after it; it is done when the queue is full.
    One that goes on for `_MOST_S` waits for nobody, and is left alone from then on.
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
    """The threads that do not wait where they did at the look before, which `before` holds, and holds anew."""
    working = []
    for helper, place in before.items():
        now = helper.waits_at()
        if helper.is_alive() and (now is None or now != place):
            working.append(helper)
        before[helper] = now
    return working
