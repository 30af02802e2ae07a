"""Python programs that tests start, forked from a process that has imported PyTorch: 0.6 s of CPU time each, not 3.4.

While `instead_of_processes` is open, `subprocess.Popen` starts `python FILE` so; the program is a child of the process
that asks, with its own environment, files, path and `sitecustomize`, and an import of torch that hooks see. Other
commands, and what a program starts itself, are processes as ever.

    this process -> server (has imported PyTorch) -> a fork that ends at once -> the program, then this process's child
"""

import atexit
import contextlib
import ctypes
import gc
import importlib.util
import json
import os
import pickle
import runpy
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

#: Variables that are read by what has been imported already, or by an interpreter that starts.
_READ_BEFORE = ("OMP_", "MKL_", "KMP_", "LD_", "FAKECUDA_", "TRITON_", "PYTHON")
_PR_SET_CHILD_SUBREAPER = 36
_Popen = subprocess.Popen


def _read_before(environment: Any) -> dict[str, str]:
    return {n: value for n, value in environment.items() if n.startswith(_READ_BEFORE) and n != "PYTHONPATH"}


class _Server:
    """A process that has imported PyTorch."""

    def __init__(self) -> None:
        self.environment = _read_before(os.environ)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = _Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()])

    def start(self, call: dict[str, Any], files: Sequence[int]) -> int:
        """Have a program forked; returns its process id."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        socket.send_fds(self._socket, [json.dumps(call).encode()], files)
        return int(self._socket.recv(100))

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


_servers: list[_Server] = []


class ForkedPopen(subprocess.Popen):  # type: ignore[type-arg]
    """`subprocess.Popen`, with forks for Python programs."""

    def _execute_child(self, *arguments: Any) -> None:
        given = signature(_Popen._execute_child).bind(self, *arguments).arguments  # type: ignore[attr-defined]
        environment = dict(os.environ if given["env"] is None else given["env"])
        command = list(map(os.fsdecode, given["args"]))
        is_program = command[0] == sys.executable and command[1:] and not command[1].startswith("-")
        if not is_program or given["shell"] or given["pass_fds"] or _read_before(environment) != _server().environment:
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        begin = pickle.dumps((given["start_new_session"], given["preexec_fn"])).hex()
        call = {"command": command, "environment": environment, "cwd": str(Path(given["cwd"] or ".").absolute())}
        named = zip((0, 1, 2), ("p2cread", "c2pwrite", "errwrite"), strict=True)
        files = [number if given[name] == -1 else given[name] for number, name in named]
        self.pid = _server().start(call | {"begin": begin}, files)
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in ends))  # type: ignore[attr-defined]


@contextlib.contextmanager
def instead_of_processes() -> Iterator[None]:
    """Have `ForkedPopen` in the place of `subprocess.Popen` for a while."""
    _server()
    subprocess.Popen = ForkedPopen  # type: ignore[misc]
    try:
        yield
    finally:
        subprocess.Popen = _Popen  # type: ignore[misc]
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)  # those of later tests are none of this process's


def _server() -> _Server:
    if not _servers:
        _servers.append(_Server())
    return _servers[0]


def close() -> None:
    """End the server, if there is one."""
    while _servers:
        _servers.pop().close()


class _Imported:
    """Finds PyTorch, which has been imported: its module is taken as it is."""

    def __init__(self, module: Any) -> None:
        self._module, self._spec = module, module.__spec__

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> Any:
        return importlib.util.spec_from_loader(name, self, origin=self._module.__file__) if name == "torch" else None

    def create_module(self, _spec: object) -> Any:
        return self._module

    def exec_module(self, module: Any) -> None:
        module.__spec__, module.__loader__ = self._spec, self._spec.loader


def _serve(connection: socket.socket, owner: int) -> dict[str, Any]:
    """Fork for each call until the owner closes its end; returns in a fork, which is a child of the owner then."""
    while True:
        asked, files, *_ = socket.recv_fds(connection, 1 << 18, 3)
        if not asked:
            os._exit(0)
        told, tell = os.pipe()
        middle = os.fork()
        if middle == 0 and (program := os.fork()):
            os.write(tell, str(program).encode())
            os._exit(0)
        if middle == 0:
            while os.getppid() != owner:
                time.sleep(0.0005)
            for number, file in enumerate(files):
                os.dup2(file, number)
            os.closerange(3, 4096)
            return dict(json.loads(asked))
        for file in (*files, tell):
            os.close(file)
        os.waitpid(middle, 0)
        connection.send(os.read(told, 100))
        os.close(told)


def _become(call: dict[str, Any], path: list[str]) -> None:
    """Be the process that the interpreter would have made, up to its program."""
    os.chdir(call["cwd"])
    os.environ.clear()
    os.environ.update(call["environment"])
    new_session, before = pickle.loads(bytes.fromhex(call["begin"]))
    if new_session:
        os.setsid()
    if before is not None:
        before()
    named = [str(Path(entry).absolute()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [*named, *path]
    sys.meta_path.insert(0, _Imported(sys.modules.pop("torch")))
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")


def _main() -> None:
    for name in ("torch", "torch._dynamo", "torch.distributed.fsdp", "torch.profiler", "torch.utils.data"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    own = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    path = [entry for entry in sys.path[1:] if entry not in own]
    call = _serve(socket.socket(fileno=int(sys.argv[1])), os.getppid())
    _become(call, path)
    sys.orig_argv, (program, *rest) = call["command"], call["command"][1:]
    sys.argv, sys.path[:0] = [program, *rest], [str(Path(program).resolve().parent)]
    code = 0
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()  # type: ignore[attr-defined]
    sys.stdout.flush()
    os._exit(code)  # taking apart what was imported takes a second


if __name__ == "__main__":
    _main()
