"""Waits for gloo's threads. Needs the standard library only.

A collective of gloo runs on a thread of gloo's. The thread wakes the waiting threads, and only then ends the
collective's event in the profiler (PyTorch 2.13, `ProcessGroupGloo::AsyncWork::finishWorkGloo`). If the profiler stops
in between, the trace has the event as unfinished, with a wrong end, and the thread writes the real end into memory that
the profiler has freed. That can end the process: "malloc(): unsorted double linked list corrupted".
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: The name that PyTorch gives the threads that run gloo's collectives.
_NAME: Final = "pt_gloo_runloop"
_THREADS: Final = Path("/proc/self/task")
#: Seconds between two looks. The look releases the GIL: a thread that runs a hook in Python may be waiting for it.
_LOOK_S: Final = 0.002
#: So many looks in a row must find all threads asleep: between two locks a thread sleeps for a moment, too.
_LOOKS: Final = 3
#: Seconds after which the wait is given up. A thread that waits for a slower rank is asleep, so a wait this long means
#: that other programs use the processor.
_MOST_S: Final = 5.0


def wait_for_gloo() -> bool:
    """Wait until the threads of gloo are asleep; return whether they are. True at once without any, or not on Linux."""
    ends_at = time.monotonic() + _MOST_S
    asleep = 0
    while asleep < _LOOKS:
        states = list(_states())
        if not states:
            return True
        asleep = asleep + 1 if all(state == "S" for state in states) else 0
        if time.monotonic() > ends_at:
            return False
        time.sleep(_LOOK_S)
    return True


def _states() -> Iterator[str]:
    """The state of each thread of gloo, as a letter of proc_pid_stat(5): R runs or could run, S sleeps."""
    try:
        threads = list(_THREADS.iterdir())
    except OSError:  # not on Linux
        return
    for thread in threads:
        try:
            stat = (thread / "stat").read_text(errors="replace")
        except OSError:  # it has ended
            continue
        # "number (name) state ...": a name may hold brackets.
        name, _, rest = stat.partition("(")[2].rpartition(") ")
        if name == _NAME:
            yield rest[0]
