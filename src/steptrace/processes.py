"""How long processes live: a child no longer than its parent, and a whole tree until it is ended."""

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from types import FrameType
from typing import Final

import psutil

_LINUX: Final = sys.platform == "linux"
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
#: Between the request to end and the kill.
_GRACE_S: Final = 3.0


def die_with(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent, process `parent`, ends; at once if it has."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def adopt_orphans() -> None:
    """Become the parent of every process below this one whose own parent ends, so that it can be ended too."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_tree(processes: Collection[psutil.Process], grace_s: float = _GRACE_S) -> None:
    """End processes with all that they have started: a request first, then by force."""
    tree = set(processes)
    for process in tuple(tree):
        with contextlib.suppress(psutil.NoSuchProcess):
            tree.update(process.children(recursive=True))
    for act in (psutil.Process.terminate, psutil.Process.kill):
        for process in tree:
            with contextlib.suppress(psutil.Error):
                act(process)
        tree = set(psutil.wait_procs(tree, timeout=grace_s)[1]) if tree else set()


def in_words(code: int) -> str:
    """How a process ended, by its return code: `exit code 1` or `SIGKILL (out of host memory?)`."""
    if code >= 0:
        return f"exit code {code}"
    return f"{signal.Signals(-code).name}{' (out of host memory?)' if -code == signal.SIGKILL else ''}"


def children() -> set[psutil.Process]:
    """All processes below this one, those that it has adopted included."""
    return set(psutil.Process().children(recursive=True))


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


def _prctl(option: int, value: int) -> None:
    if _LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
