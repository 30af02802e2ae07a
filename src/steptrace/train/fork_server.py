"""A process that has imported PyTorch once and is forked for every run: starting one takes milliseconds, not seconds.

    Snakemake -> supervise (asks, waits) . . . watcher -> server -> supervisor -> guard -> training

The first supervisor that finds none starts a server, and becomes its client like all later ones. A server serves only
who has its own environment variables, working directory and interpreter, so that whatever the libraries read from them
while they are imported (OMP_NUM_THREADS, LD_PRELOAD, PYTHONPATH) is what a process of its own would have read. What it
has imported has computed nothing, started no thread of PyTorch's and opened no GPU. A server ends with its owner, the
process that runs the workflow, also while it imports: a second process waits for the owner's end, and the kernel ends
the server with that one. What was forked from it ends with it. A client that is gone takes its run along.

Runs that are forked from one server share its hash seed and the addresses of libraries, which separate processes draw
anew. So every round of trainings has a server of its own (`--server run0`): what a layout happens to cost is common to
the variants that are compared in a round, and differs between rounds as before.
"""

import contextlib
import importlib
import json
import os
import select
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from steptrace.train.fork_client import MOST, PROGRAMS, is_program, same_user
from steptrace.train.lifetime import leave

#: A server that nobody has asked for so long ends.
_IDLE_S: Final = 300.0
_ASKS_S: Final = 5.0

#: Open files of a server once it has imported everything; None in a process that is not forked from one.
_opened: frozenset[int] | None = None


def program(command: Sequence[str]) -> Callable[[], int] | None:
    """What `command` would run, if it has been imported in this process to be forked."""
    if _opened is None or not is_program(command):
        return None
    return partial(_main_of, command[2], list(command[3:]))


def become(run: Callable[[], int], environment: Mapping[str, str], output: int, keep: Collection[int]) -> NoReturn:
    """In a fork: be the process that `python -m` would have made, from its open files to its end.

    Args:
        run: the program; returns the exit code.
        environment: all of its environment variables.
        output: open file that becomes its stdout and stderr.
        keep: open files that it and its children inherit.
    """
    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
            if signal.getsignal(number) is not signal.SIG_IGN:  # what is ignored stays so, as with exec(2)
                signal.signal(number, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        _use_files([nothing, output, output], keep)
        for name in set(os.environ) - set(environment):
            del os.environ[name]
        os.environ.update(environment)
        code = run()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else ended.code is not None
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
    except BaseException:
        traceback.print_exc()
    finally:
        leave(code)


def main(arguments: Sequence[str]) -> NoReturn:
    """Be a server: `python -m steptrace.train.fork_server OWNER ADDRESS`."""
    global _opened
    owner, address = arguments
    with contextlib.suppress(OSError):  # another was first, or the owner is gone
        _live_no_longer_than(int(owner))
        server = _Server(address)
        for name in (*PROGRAMS, "steptrace.train.attempt", "steptrace.train.supervise"):
            importlib.import_module(name)
        files = {int(file.name): str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()}
        if not any(path.startswith("/dev/nvidia") for path in files.values()):  # a GPU cannot be used in a fork, then
            _opened = frozenset(files) - server.files
            server.serve()
    leave(0)


def _live_no_longer_than(owner: int) -> None:
    """Go on in a fork, which the kernel kills when this process ends: with the owner, or with the fork."""
    from steptrace.train.lifetime import die_with

    watcher = os.getpid()
    owner_end = os.pidfd_open(owner)
    server = os.fork()
    if server:
        select.select([owner_end, os.pidfd_open(server)], [], [])
        leave(0)
    os.close(owner_end)
    die_with(watcher, signal.SIGKILL)


class _Server:
    """Waits for clients, and for the ends of what was forked for them; `files` are those that it has open itself."""

    def __init__(self, address: str) -> None:
        self._events = selectors.EpollSelector()
        self._runs: dict[int, tuple[int, socket.socket]] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(f"\0{address}")
        self._listener.listen(64)
        self._events.register(self._listener, selectors.EVENT_READ, self._accept)
        self.files = {self._listener.fileno(), self._events.fileno()}

    def serve(self) -> None:
        """Until nobody asks any more; or this process is killed, and by `die_with` all its forks."""
        while (ready := self._events.select(_IDLE_S)) or self._runs:
            for key, _ in ready:
                key.data()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(_ASKS_S)
        asked = b""
        files: list[int] = []
        with contextlib.suppress(OSError):
            if same_user(connection):
                asked, files, *_ = socket.recv_fds(connection, MOST, 3)
        if not asked or len(files) != 3:
            connection.close()
            return
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            _supervise(json.loads(asked), server, files)
        for file in files:
            os.close(file)
        end = os.pidfd_open(pid)
        self._runs[pid] = (end, connection)
        self._events.register(end, selectors.EVENT_READ, partial(self._ended, pid))
        self._events.register(connection, selectors.EVENT_READ, partial(self._abandoned, pid))
        with contextlib.suppress(OSError):
            connection.send(b"forked")

    def _ended(self, pid: int) -> None:
        end, connection = self._runs.pop(pid)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(KeyError):
            self._events.unregister(connection)
        self._events.unregister(end)
        os.close(end)
        with contextlib.suppress(OSError):
            connection.send(str(os.waitstatus_to_exitcode(status)).encode())
        connection.close()

    def _abandoned(self, pid: int) -> None:
        """The client is gone: its supervisor is told to stop, and ends what it has started."""
        self._events.unregister(self._runs[pid][1])
        os.kill(pid, signal.SIGTERM)


def _supervise(arguments: list[str], server: int, files: list[int]) -> NoReturn:
    """In a fork of the server: supervise as the client asked, on the client's terminal."""
    from steptrace.train.supervise import main as supervise

    code = 1
    try:
        _use_files(files, ())
        code = supervise(arguments, server=server)
    except BaseException:
        traceback.print_exc()
    finally:
        leave(code)


def _main_of(name: str, arguments: list[str]) -> int:
    module = sys.modules[name]
    sys.argv = [str(module.__file__), *arguments]
    return int(module.main(arguments))


def _use_files(standard: Sequence[int], keep: Collection[int]) -> None:
    """Have these as stdin, stdout and stderr, and beside them only `keep` and what the imports have opened."""
    assert _opened is not None
    for number, file in enumerate([os.dup(file) for file in standard]):
        os.dup2(file, number)
    for file in keep:
        os.set_inheritable(file, True)
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(entry) not in {0, 1, 2, *keep, *_opened}:
            with contextlib.suppress(OSError):
                os.close(int(entry))


if __name__ == "__main__":
    importlib.import_module("steptrace.train.fork_server").main(sys.argv[1:])  # as the module that others import
