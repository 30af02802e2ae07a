"""How long processes live: a child ends with its parent, and with a child end all processes that it has started."""

import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from types import FrameType
from typing import Any, Final, NoReturn, Self

import psutil

_LINUX: Final = sys.platform == "linux"
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
#: Between the request to end and the kill.
_GRACE_S: Final = 3.0
#: The environment variable with the process id of the Snakemake that starts jobs.
WORKFLOW: Final = "STEPTRACE_WORKFLOW"
_ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Children:
    """Starts processes. At the end of the `with` block it ends them and all their descendants, in any session.

    Signals that would end this process do not end it meanwhile: `signals` lists those received. Signals that are
    ignored stay ignored: SIGHUP under `nohup`, SIGINT in a script's `command &`.
    """

    def __enter__(self) -> Self:
        self.signals: list[int] = []
        self._started: list[psutil.Popen] = []
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what a child leaves becomes a child of this process
        self.spare()
        in_main = threading.current_thread() is threading.main_thread()  # which alone may handle signals
        handled = [number for number in _ENDING if in_main and signal.getsignal(number) is not signal.SIG_IGN]
        self._handlers = {number: signal.signal(number, self._note) for number in handled}
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def start(
        self,
        command: Sequence[str],
        *,
        last: signal.Signals = signal.SIGKILL,
        instead: Callable[[], NoReturn] | None = None,
        **options: Any,
    ) -> psutil.Popen:
        """Start a command in a new session: signals of a terminal reach it through this process only.

        Args:
            command: the program and its arguments.
            last: the signal that the child gets if this process is killed.
            instead: called in the child in place of the command, and ends it.
            options: as for `subprocess.Popen`.
        """
        begin = partial(_begin, os.getpid(), last, instead)
        self._started.append(psutil.Popen(command, preexec_fn=begin, start_new_session=True, **options))
        return self._started[-1]

    def end(self, but: Collection[psutil.Process] = ()) -> None:
        """End all children and their descendants, except `but` and its descendants: by SIGTERM, then by SIGKILL."""
        below = set(psutil.Process().children(recursive=True)) - self._spared
        tree = {*self._started, *below}  # `Popen` objects of children that were started have return codes
        # Looked up after `tree`: processes that a kept child starts meanwhile are not in `tree`.
        tree -= {process for child in but for process in (child, *child.children(recursive=True))}
        for act in (psutil.Process.terminate, psutil.Process.kill):
            for process in tree:
                with contextlib.suppress(psutil.Error):
                    act(process)
            tree = set(psutil.wait_procs(tree, timeout=_GRACE_S)[1]) if tree else set()

    def spare(self) -> None:
        """Exclude the processes that run now from the end of the block."""
        self._spared = set(psutil.Process().children(recursive=True))

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signals.append(number)


def _begin(parent: int, last: signal.Signals, instead: Callable[[], NoReturn] | None) -> None:
    """In a child, before its program begins; its input and output are set by then."""
    die_with(parent, last)
    if instead is not None:
        os.closerange(3, 1 << 16)  # Popen waits until one of them is closed
        for number in _ENDING:
            if callable(signal.getsignal(number)):  # a new program begins without handlers
                signal.signal(number, signal.SIG_DFL)
        gc.enable()
        instead()


def die_with(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent, process `parent`, ends; at once if it has."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def require_workflow() -> None:
    """Exit if the Snakemake that started this process has ended.

    Comparing the parent with the first one is not enough: Snakemake can have ended before that first look.
    """
    workflow = int(os.environ.get(WORKFLOW, "0"))
    if workflow and os.getppid() != workflow:
        try:
            os.kill(workflow, 0)  # a container's runtime, or a shell, may stand between
        except ProcessLookupError:
            sys.exit(1)
        except PermissionError:
            pass


def in_words(code: int) -> str:
    """How a process ended, by its return code: `exit code 1` or `SIGKILL (out of host memory?)`."""
    if code >= 0:
        return f"exit code {code}"
    if -code not in set(signal.Signals):  # a real-time signal
        return f"signal {-code}"
    return f"{signal.Signals(-code).name}{' (out of host memory?)' if -code == signal.SIGKILL else ''}"


def _prctl(option: int, value: int) -> None:
    if _LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
