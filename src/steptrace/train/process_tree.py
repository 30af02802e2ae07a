"""A child process that is ended with everything it ever started, whichever single process is killed first.

    this process -> guard -> child -> whatever the child starts, in its own or in new sessions

The guard is a fork of this process. It is a subreaper (prctl(2)): a process whose parent ends becomes the guard's, so
that the guard finds it whatever session it is in. Once the child has ended, the guard kills what is left and tells how
the child ended. If this process ends first, the kernel tells the guard; if the guard is killed, the kernel kills the
child, and this process, a subreaper too, gets the rest. Other systems than Linux have neither: there the child's
process group is what is ended.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

from steptrace.train.fork_server import become, program
from steptrace.train.lifetime import LINUX, adopt_orphans, die_with

#: Between the request to end and the force.
_GRACE_S = 2.0
#: For what the child leaves running to end by itself: Python's resource tracker removes shared memory once it is alone.
_LEFT_S = 0.5
#: Longest time that killed processes are waited for: one in an uninterruptible call dies only when that returns.
_GONE_S = 10.0
#: Set by a workflow for all its jobs: the folder that they write to.
WORKDIR_VARIABLE = "STEPTRACE_WORKDIR"
#: Set by a workflow for all its jobs: names this call of it.
CALL_VARIABLE = "STEPTRACE_CALL"
#: Set by Slurm for the processes of a job, and of an allocation that Snakemake itself may run in.
_SLURM_JOB = b"SLURM_JOB_ID"


class Guarded:
    """A running child: `output` is the read end of a pipe with its stdout and stderr."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], keep: Sequence[int] = ()) -> None:
        """Start `command`.

        Args:
            command: the program with its arguments.
            environment: all of its environment variables.
            keep: open files that the child inherits.

        Raises:
            OSError: it cannot be started.
        """
        self._spared = frozenset(descendants(os.getpid()))
        adopt_orphans()
        self.output, output = os.pipe()
        self._told, tell = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _guard(lambda: _start(command, environment, output, (*keep,)), parent, tell, closing=output)
        os.close(output)
        os.close(tell)
        self._ended = False

    def poll(self) -> bool:
        """Whether the child and all it started have ended."""
        if not self._ended:
            self._ended = os.waitpid(self._pid, os.WNOHANG)[0] != 0
        return self._ended

    def wait(self, timeout_s: float) -> bool:
        """`poll` for so long."""
        until = time.monotonic() + timeout_s
        while not self.poll() and time.monotonic() < until:
            time.sleep(0.01)
        return self._ended

    def end(self) -> None:
        """Kill the child with everything it started: first a request to it, then by force."""
        if not self.poll():
            os.kill(self._pid, signal.SIGTERM)
        if not self.wait(_GRACE_S + _GONE_S):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._ended = True
        kill_descendants(self._spared)
        os.close(self.output)

    def result(self) -> int:
        """The child's exit code, negative for a signal, after `end`.

        Raises:
            OSError: it could not be started.
        """
        with os.fdopen(self._told, "rb") as file:
            kind, _, value = file.read().decode().partition(" ")
        if kind == "errno":
            number, _, name = value.partition(" ")
            raise OSError(int(number), os.strerror(int(number)), name)
        return int(value) if kind == "ended" else -signal.SIGKILL


def descendants(root: int) -> list[int]:
    """The processes that run below `root`; zombies are left out, but not what is below them."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    running = set()
    for entry in Path("/proc").glob("[0-9]*") if LINUX else ():
        with contextlib.suppress(OSError):
            state, parent, *_ = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            children[int(parent)].append(int(entry.name))
            if state not in "ZX":
                running.add(int(entry.name))
    found, index = list(children[root]), 0
    while index < len(found):
        found += children[found[index]]
        index += 1
    return [pid for pid in found if pid in running]


def kill_descendants(spared: Collection[int] = ()) -> None:
    """Kill all that runs below this process, until nothing is left that was started meanwhile."""
    for pid in _kill_all_of(lambda: [one for one in descendants(os.getpid()) if one not in spared]):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def let_end(spared: Collection[int] = ()) -> None:
    """Give what runs below this process a moment to end by itself."""
    until = time.monotonic() + _LEFT_S
    while set(descendants(os.getpid())) - set(spared) and time.monotonic() < until:
        time.sleep(0.01)


def end_leftovers(workdir: Path) -> int:
    """Kill the jobs of a workflow in `workdir` that has ended without them, or ends now; return how many there were.

    To be called by the one workflow that may be at work there, while it has no job. Before its first these are analyses
    and pages, if nothing but Snakemake was killed; after its last they are fork servers. A job that Slurm started on
    this host is not one of them: it goes on, and its result is taken (`steptrace.workflow.resume`).
    """
    allocation = os.environb.get(_SLURM_JOB)

    def left() -> list[int]:
        found = []
        for entry in Path("/proc").glob("[0-9]*") if LINUX else ():
            with contextlib.suppress(OSError):  # another user's, or gone
                variables = dict(one.partition(b"=")[::2] for one in (entry / "environ").read_bytes().split(b"\0"))
                ours = variables.get(WORKDIR_VARIABLE.encode()) == os.fsencode(workdir)
                ours = ours and variables.get(_SLURM_JOB, allocation) == allocation
                if ours and int(entry.name) != os.getpid():
                    found.append(int(entry.name))
        return found

    return len(_kill_all_of(left))


def _kill_all_of(find: Callable[[], list[int]]) -> set[int]:
    """Kill what `find` gives until it gives nothing that was started meanwhile; return all that was killed."""
    until = time.monotonic() + _GONE_S
    killed: set[int] = set()
    while time.monotonic() < until and (left := find()):
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed.update(left)
        time.sleep(0.01)
    return killed


def _guard(start: Callable[[], int], parent: int, tell: int, closing: int) -> NoReturn:
    """What the guard does, in a fork of the process that asked for it."""
    group = 0

    def stop(_number: int, _frame: FrameType | None) -> None:
        if not group:  # it is just being started
            kill_descendants()
            os._exit(0)
        # A child that answers the request by ending lets `waitpid` below return; the alarm ends one that does not.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, _GRACE_S)

    def force(_number: int, _frame: FrameType | None) -> None:
        _kill_all(group)

    try:
        os.setsid()  # what is sent to the group of whoever started us is not for the guard
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, force)
        signal.signal(signal.SIGTERM, stop)
        adopt_orphans()
        die_with(parent, signal.SIGTERM)
        try:
            group = start()
        except OSError as error:
            os.write(tell, f"errno {error.errno or 0} {error.filename or ''}".encode())
            os._exit(0)
        os.close(closing)
        ended, status = 0, 0
        while ended != group:
            ended, status = os.waitpid(-1, 0)  # also those of which the guard became the parent
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(tell, f"ended {os.waitstatus_to_exitcode(status)}".encode())
        let_end()
        _kill_all(group)
    finally:
        os._exit(0)


def _kill_all(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if group and not LINUX:
            os.killpg(group, signal.SIGKILL)
    kill_descendants()


def _start(command: Sequence[str], environment: Mapping[str, str], output: int, keep: Sequence[int]) -> int:
    """Start the child in a session of its own, to be killed should its guard be; return its id."""
    guard = os.getpid()
    if run := program(command):
        pid = os.fork()
        if pid == 0:
            os.setsid()
            die_with(guard, signal.SIGKILL)
            become(run, environment, output, keep)
        return pid
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=environment,
        start_new_session=True,
        preexec_fn=partial(die_with, guard, signal.SIGKILL),
        pass_fds=keep,
    )
    return child.pid
