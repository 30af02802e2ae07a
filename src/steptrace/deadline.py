"""When a training will be stopped for taking too long: just before, it writes where each of its threads is.

`environment` is for whoever stops it, `write_stacks_before_it` for the training, `stopped_at` for the reader of its
output. Standard library only.
"""

import faulthandler
import os
import re
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

_VARIABLE: Final = "STEPTRACE_DEADLINE"
#: Enough to write the stacks of a busy process, and little beside the minutes that a program may take.
_BEFORE_S: Final = 1.0
_SOON_S: Final = 0.01
_THREAD: Final = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):\Z")
_FRAME: Final = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)\Z')
_LIBRARIES: Final = ("site-packages", "dist-packages", "/lib/python", "<frozen")


def environment(at: float | None) -> dict[str, str]:
    """The environment variable of a training that is stopped `at` this time (`time.monotonic`); None: never."""
    return {} if at is None else {_VARIABLE: f"{at:.3f}"}


def write_stacks_before_it() -> None:
    """Have this process's stacks written to its stderr just before it is stopped, if it is to be; not its forks'."""
    if text := os.environ.get(_VARIABLE):
        at = float(text) - _BEFORE_S
        _write_stacks(max(at, time.monotonic() + _SOON_S))
        # A fork would have the locks of the thread that waits, but not the thread, and could never end.
        os.register_at_fork(before=faulthandler.cancel_dump_traceback_later, after_in_parent=partial(_write_stacks, at))


def _write_stacks(at: float) -> None:
    """Have them written at that time (`time.monotonic`), if it is not over."""
    left_s = at - time.monotonic()
    if left_s > 0:
        faulthandler.dump_traceback_later(left_s, file=2)


def stopped_at(lines: Sequence[str]) -> str | None:
    """Where the main thread was by stacks at the end of an output; the program's own line rather than a library's."""
    starts = [index for index, line in enumerate(lines) if _THREAD.match(line)]
    frames = [match for line in lines[starts[-1] + 1 :] if (match := _FRAME.match(line))] if starts else []
    own = (frame for frame in frames if not any(part in frame["file"] for part in _LIBRARIES))
    frame = next(own, frames[0] if frames else None)
    return f"{frame['file']}:{frame['line']} in {frame['function']}" if frame else None
