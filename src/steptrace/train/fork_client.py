"""Asks a fork server (`steptrace.train.fork_server`) to run something, and starts one where there is none.

Whatever does not work out (another system than Linux, a job on a cluster's node, a server that cannot import) makes
`ask` return None: then the run is started as a process of its own.
"""

import hashlib
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

#: Set to 1 by who starts processes on its own machine: a workflow for its jobs, `find-batch` for its trials.
VARIABLE: Final = "STEPTRACE_FORK"
#: What can be run: each has a `main(arguments)` that returns an exit code.
PROGRAMS: Final = (
    "steptrace.train.main",
    "steptrace.train.equivalence",
    "steptrace.train.batch_memory",
    "steptrace.predict.main",
)
#: A new server listens before it imports anything.
_LISTENS_S: Final = 20.0
#: Longest message.
MOST: Final = 1 << 17


def ask(name: str, owner: int, arguments: Sequence[str]) -> int | None:
    """Have a supervisor for `arguments` forked and wait for its end; return its exit code, None if there was no server.

    Args:
        name: which of the owner's servers; it is started if there is none yet.
        owner: the process that the server lives no longer than.
        arguments: of `steptrace.train.supervise`.
    """
    if os.environ.get(VARIABLE) != "1" or not hasattr(os, "pidfd_open"):
        return None
    try:
        connection = _connected(name, owner)
        if connection is None:
            return None
        with connection:
            socket.send_fds(connection, [json.dumps(list(arguments)).encode()], [0, 1, 2])
            told = [connection.recv(MOST), connection.recv(MOST)]  # that it has forked, and the exit code
    except OSError:
        return None
    return int(told[1]) if told[1] else None  # None: it could not import, or was killed, and its forks with it


def is_program(command: Sequence[str]) -> bool:
    """Whether a server can run `command`: not a launcher of several ranks, nor a program of a study of commands."""
    match command:
        case (sys.executable, "-m", name, *_):
            return name in PROGRAMS
    return False


def _connected(name: str, owner: int) -> socket.socket | None:
    """A connection to the server for this process's surroundings, which is started if it is not there."""
    parts = [name, owner, sys.executable, str(Path.cwd()), sorted(os.environ.items())]
    address = f"steptrace-{os.getuid()}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]}"
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = None
    until = time.monotonic() + _LISTENS_S
    while True:
        try:
            connection.connect(f"\0{address}")  # an address in memory, not a file
        except ConnectionRefusedError:
            if server is None:
                import subprocess  # once for many clients

                command = [sys.executable, "-m", "steptrace.train.fork_server", str(owner), address]
                nowhere = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
                variables = {**os.environ, "PYTHONUNBUFFERED": "1"}
                server = subprocess.Popen(command, env=variables, start_new_session=True, **nowhere)  # type: ignore[call-overload]
            if time.monotonic() < until:
                time.sleep(0.02)
                continue
        else:
            if same_user(connection):
                return connection
        connection.close()
        return None


def same_user(connection: socket.socket) -> bool:
    """Whether the other end is ours: an address in memory has no owner, anyone may connect or be there first."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())
