"""How long a process lives: to its parent's end, or until a signal tells it to stop."""

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import NoReturn

LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class StopError(Exception):
    """The supervisor was told to stop or its parent is gone; the argument is its exit code."""


def leave(code: int) -> NoReturn:
    """End a fork as an interpreter ends, but for taking apart all that was imported, which takes a second."""
    for end in (threading._shutdown, atexit._run_exitfuncs, sys.stdout.flush, sys.stderr.flush):  # type: ignore[attr-defined]
        with contextlib.suppress(BaseException):
            end()
    os._exit(code & 0xFF)


def die_with(parent: int, number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent, process `parent`, ends; at once if it has."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


@contextlib.contextmanager
def handling(handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], object]]) -> Iterator[None]:
    """Have these called on signals meanwhile; none where this is not the main thread, which alone may.

    What is ignored stays so: SIGHUP under `nohup`, SIGINT in a script's `command &`.
    """
    main = threading.current_thread() is threading.main_thread()
    wanted = [number for number in handlers if main and signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handlers[number]) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def adopt_orphans() -> None:
    """Become the parent of every process below this one whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
