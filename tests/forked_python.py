"""A Python whose programs begin with PyTorch imported: 0.1 s of processor time each instead of 2.

Or with other modules imported.

    `python` (a client) -> server, which has imported PyTorch -> a fork that waits -> a fork that is the program

The client hands arguments, environment, folder and open files to the server, passes signals on to the program, and ends
as it does. If the client is killed, so are the program and what it has started. To the program all is as if it had an
interpreter of its own, `sitecustomize` and hooks on `import torch` included, but for its parent and `sys.modules`.
"""

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib.util
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import psutil

#: `torch._dynamo` is what the first optimizer of a process imports.
TORCH = ("torch", "torch._dynamo", "torch.distributed.fsdp", "torch.profiler", "torch.utils.data")
#: Variables that an interpreter or a library reads as it starts: where they are not the server's, nothing is forked.
READ_EARLY = ("LD_", "PYTHON")
READ_BY_TORCH = ("OMP_", "MKL_", "KMP_", "FAKECUDA_", "TRITON_")
READ_LATE = ("PYTHONPATH", "PYTHONUNBUFFERED")
PYTHON = sys.executable
_CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
arguments, environment = sys.argv[1:], dict(os.environ)
early = {{n: v for n, v in environment.items() if n.startswith({read_early}) and n not in {READ_LATE}}}
if early != {early} or not arguments or arguments[0][0] == "-" and arguments[0] not in ("-m", "-c", "-u"):
    os.execv({python!r}, [{python!r}, *arguments])
files = [int(n) for n in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + n)]
call = dict(python=sys.argv[0], arguments=arguments, environment=environment, folder=os.getcwd(), files=files)
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect({address!r})
    socket.send_fds(server, [json.dumps(call).encode()], files)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: server.send(b"%d" % number))
    code = int(server.recv(100) or -9)
if -code in (signal.SIGINT, signal.SIGTERM):
    signal.signal(-code, signal.SIG_DFL)
code < 0 and os.kill(os.getpid(), -code)
os._exit(code & 255)
"""
_PR_SET_CHILD_SUBREAPER = 36
_servers: dict[str, int] = {}


def executable(file: Path, imported: Sequence[str] = TORCH) -> Path:
    """Make an executable of `file`, in the place of `python`, for programs of this process.

    `imported`: the modules with which they begin.
    """
    read_early = READ_EARLY + READ_BY_TORCH if "torch" in imported else READ_EARLY
    address = f"\0steptrace-forked-python-{os.getpid()}-{'-'.join(imported)}"[:100]
    if address not in _servers:
        ends, _servers[address] = os.pipe()  # closed by this process's end
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as clients:
            clients.bind(address)
            clients.listen(64)
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)  # or the server would be a child of this one
            passed = [clients.fileno(), ends]
            server = [PYTHON, __file__, *map(str, passed), *imported]
            subprocess.run(["setsid", "--fork", *server], pass_fds=passed, check=True)
        os.close(ends)
    early = {n: v for n, v in os.environ.items() if n.startswith(read_early) and n not in READ_LATE}
    file.write_text(_CLIENT.format(python=PYTHON, early=early, read_early=read_early, address=address, **globals()))
    file.chmod(0o755)
    return file


def _serve(clients: socket.socket, ends: int, imported: Sequence[str]) -> None:
    for name in imported:
        importlib.import_module(name)
    global _path, _finders
    _path = [entry for entry in sys.path[1:] if entry not in _named_path()]
    _finders = [*([_Imported(sys.modules["torch"])] if "torch" in sys.modules else []), *sys.meta_path]
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while ends not in select.select([clients, ends], [], [])[0]:
        client, _ = clients.accept()
        if os.fork() == 0:
            clients.close()
            _wait(client)
        client.close()


def _wait(client: socket.socket) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request, files, *_ = socket.recv_fds(client, 1 << 18, 100)
    program = os.fork()
    if program == 0:
        client.detach()
        _become(json.loads(request), files)
    for file in files:
        os.close(file)
    end = os.pidfd_open(program)
    while end not in select.select([client, end], [], [])[0]:
        if number := client.recv(100):
            os.kill(program, int(number))
            continue
        for process in (psutil.Process(program), *psutil.Process(program).children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        os._exit(0)
    with contextlib.suppress(OSError):
        client.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]))
    os._exit(0)


def _become(call: dict[str, Any], files: Sequence[int]) -> NoReturn:
    """Be the process that the interpreter would have made, to its end."""
    os.setsid()
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, 1000) for file in files]
    os.closerange(3, 1000)
    for file, number in zip(moved, call["files"], strict=True):
        os.dup2(file, number)
    os.closerange(1000, 2000)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    for number, name, errors in (1, "stdout", "strict"), (2, "stderr", "backslashreplace"):
        binary = open(number, "wb", buffering=0, closefd=False)  # noqa: SIM115
        setattr(sys, name, io.TextIOWrapper(binary, errors=errors, write_through=True))
        setattr(sys, f"__{name}__", getattr(sys, name))
    os.chdir(call["folder"])
    os.environ.clear()
    os.environ.update(call["environment"])
    sys.executable = call["python"]
    sys.orig_argv = [sys.executable, *call["arguments"]]
    code = 0
    try:
        _run([word for place, word in enumerate(call["arguments"]) if (place, word) != (0, "-u")])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
    except BaseException as error:
        code = 1
        sys.last_type = type(error)
        sys.last_value = error
        sys.last_traceback = error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    os._exit(code & 255)


def _run(arguments: list[str]) -> None:
    """As the interpreter's command line."""
    kind = arguments.pop(0) if arguments[0] in ("-m", "-c") else None
    program = arguments[0]
    sys.argv = [kind or arguments[0], *arguments[1:]]
    sys.path[:], sys.meta_path[:] = [*_named_path(), *_path], _finders
    for name in ("sitecustomize", "torch"):
        sys.modules.pop(name, None)
    if importlib.util.find_spec("sitecustomize") is not None:
        importlib.import_module("sitecustomize")
    sys.path.insert(0, {"-m": str(Path.cwd()), "-c": ""}.get(kind or "", str(Path(program).resolve().parent)))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if kind == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    elif kind == "-c":
        exec(compile(program, "<string>", "exec"), vars(main))
    else:
        main.__file__ = str(Path(program).absolute())
        exec(compile(Path(program).read_bytes(), main.__file__, "exec"), vars(main))


def _named_path() -> list[str]:
    return [str(Path(entry).absolute()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


class _Imported:
    """Finds PyTorch, which has been imported: its module is taken as it is."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._spec = module.__spec__

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> Any:
        return importlib.util.spec_from_loader(name, self, origin=self._module.__file__) if name == "torch" else None

    def create_module(self, _spec: object) -> Any:
        return self._module

    def exec_module(self, module: Any) -> None:
        module.__spec__ = self._spec
        module.__loader__ = self._spec.loader


if __name__ == "__main__":
    # By its name, so that no program finds this module in the place of its own.
    importlib.import_module("forked_python")._serve(
        socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3:]
    )
