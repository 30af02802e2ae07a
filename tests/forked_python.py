"""Python programs that train, forked from a process that has imported PyTorch: 0.1 s of CPU time each instead of 2.

`ForkedPopen` in the place of `subprocess.Popen` starts `python FILE`, `python -m MODULE` and `python -c CODE` in this
way, and all other commands as ever. What it starts is a process as the interpreter would have made it, a child of the
process that asks: its own environment, open files, path, `sitecustomize`, and `import torch` that hooks on imports see.
It differs in /proc/PID/cmdline, /proc/PID/environ and in what `sys.modules` holds beforehand.

    this process -> server (has imported PyTorch) -> a fork that ends at once -> the program, then this process's child

Programs that only start others (`LAUNCHERS`) have their own started in this way, too, by a server forked from them.
`interpreter` is for what neither starts, such as a workflow's jobs: an executable in the place of `python FILE`, which
lives as long as its program, and that as long as it.
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
import pickle
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, NoReturn

#: `torch._dynamo` is what the first optimizer of a process imports.
IMPORTED = ("torch", "torch._dynamo", "torch.distributed.fsdp", "torch.profiler", "torch.utils.data")
#: Variables that are read by what has been imported already, or by an interpreter that starts.
_READ_BEFORE = ("OMP_", "MKL_", "KMP_", "LD_", "FAKECUDA_", "TRITON_", "PYTHON")
_FROM_A_FORK = "steptrace.train.supervise"
LAUNCHERS = ("torch.distributed.run", "steptrace.cli", _FROM_A_FORK)
_MOST = 1 << 18
_CLIENT = """#!{python} -IS
import json, os, socket, sys
passed = [int(n) for n in os.listdir("/proc/self/fd") if int(n) > 2 and os.path.exists("/proc/self/fd/" + n)]
call = dict(arguments=["{python}", *sys.argv[1:]], environment=dict(os.environ), cwd=os.getcwd())
call["pass"] = passed
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect({address!r})
    socket.send_fds(server, [json.dumps(call).encode()], [0, 1, 2, *passed])
    code = int(server.recv(100))
code < 0 and os.kill(os.getpid(), -code)
os._exit(code)
"""
_PR_SET_CHILD_SUBREAPER = 36
#: A fork is adopted at once, unless whoever asked for it is gone.
_ADOPTED_WITHIN_S = 10.0


def _read_before(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if name.startswith(_READ_BEFORE) and name != "PYTHONPATH"
    }


class _Server:
    """A process that has imported PyTorch, for all that this process starts; made when it is first needed."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.environment = _read_before(os.environ)
        self._one_call = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            if _base is None:
                # Bound here: an `interpreter` may be started before the server is.
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                    listener.bind(_address(self.owner))
                    listener.listen()
                    passed = [theirs.fileno(), listener.fileno()]
                    self._process = _Popen([sys.executable, __file__, *map(str, passed)], pass_fds=passed)
            elif os.fork() == 0:
                self._socket.close()
                with contextlib.suppress(BaseException):
                    serve(theirs, self.owner)
                os._exit(0)

    def start(self, call: Mapping[str, Any], files: Sequence[int]) -> int:
        """Have a program forked; returns its process id once it is a child of this process."""
        try:
            with self._one_call:
                _adopt_orphans(1)
                socket.send_fds(self._socket, [json.dumps(call).encode()], files)
                return int(self._socket.recv(_MOST))
        except BaseException:  # such as a timeout: what comes yet is no answer to the next call
            close()
            raise

    def close(self) -> None:
        self._socket.close()
        if _base is None:
            self._process.wait()


_Popen = subprocess.Popen
_server: _Server | None = None


@dataclass
class _Base:
    """What a new interpreter has without PYTHONPATH and a program's folder, and the module of PyTorch."""

    path: list[str]
    finders: list[Any]
    torch: types.ModuleType


#: In a server and its forks.
_base: _Base | None = None


class ForkedPopen(subprocess.Popen):  # type: ignore[type-arg]
    """`subprocess.Popen`, with forks for Python programs."""

    def _execute_child(self, *arguments: Any) -> None:
        given = signature(_Popen._execute_child).bind(self, *arguments).arguments  # type: ignore[attr-defined]
        call = _call(given)
        if call is None:
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        files = [
            given[name] if given[name] != -1 else number
            for number, name in enumerate(("p2cread", "c2pwrite", "errwrite"))
        ]
        files += call["pass"]
        self.pid = _the_server().start(call, files)
        self._child_created = True
        self._close_pipe_fds(
            *(given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
        )  # type: ignore[attr-defined]


def begin() -> None:
    """Have a server before a test looks which processes there are."""
    _the_server()


@contextlib.contextmanager
def instead_of_processes() -> Iterator[None]:
    """Have `ForkedPopen` in the place of `subprocess.Popen` for a while."""
    begin()
    before, subprocess.Popen = subprocess.Popen, ForkedPopen  # type: ignore[misc]
    try:
        yield
    finally:
        subprocess.Popen = before  # type: ignore[misc]
        _adopt_orphans(0)  # those of later tests are none of this process's


def interpreter(file: Path) -> Path:
    """Make an executable of `file` that has this process's server fork `python FILE ARGUMENTS`."""
    begin()
    file.write_text(_CLIENT.format(python=sys.executable, address=_address(os.getpid())))
    file.chmod(0o755)
    return file


def close() -> None:
    """End the server, if there is one."""
    global _server
    if _server is not None:
        _server.close()
        _server = None


def _the_server() -> _Server:
    global _server
    if _server is None or (_server.owner != os.getpid() and _base is not None):
        _server = _Server()
    return _server


def _call(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the server needs to know, or None where a process of its own has to be started."""
    arguments = given["args"]
    if isinstance(arguments, (str, bytes)) or given["shell"] or given["executable"] or given["process_group"] != -1:
        return None
    environment = os.environ if given["env"] is None else given["env"]
    environment = {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}
    arguments = [os.fsdecode(argument) for argument in arguments]
    unbuffered = arguments[1:2] == ["-u"]
    del arguments[1 : 1 + unbuffered]
    program = arguments[1] if len(arguments) > 1 else "-"
    if shutil.which(arguments[0], path=environment.get("PATH")) != sys.executable or (
        program.startswith("-") and (program not in ("-m", "-c") or len(arguments) < 3)
    ):
        return None
    server = _the_server()
    if server.owner != os.getpid() or server.environment != _read_before(environment):
        return None
    try:
        before = pickle.dumps(given["preexec_fn"]).hex()
    except (pickle.PicklingError, AttributeError):
        return None
    return {
        "arguments": arguments,
        "unbuffered": unbuffered,
        "environment": environment,
        "cwd": str(Path(os.fsdecode(given["cwd"] or ".")).absolute()),
        "before": before,
        "pass": list(given["pass_fds"]),
        "session": bool(given["start_new_session"]),
    }


def serve(connection: socket.socket, owner: int, listener: socket.socket | None = None) -> None:
    """Fork for each call until the owner closes its end, or ends."""
    while True:
        if listener is not None and connection not in select.select([connection, listener], [], [])[0]:
            _serve_client(listener.accept()[0])
            continue
        asked, files, *_ = socket.recv_fds(connection, _MOST, 100)
        if not asked:
            return
        told, tell = os.pipe()
        middle = os.fork()
        if middle == 0:
            program = os.fork()
            if program == 0:
                _become(json.loads(asked), files, owner)
            os.write(tell, str(program).encode())
            os._exit(0)
        os.close(tell)
        for file in files:
            os.close(file)
        os.waitpid(middle, 0)
        connection.send(os.read(told, 100))
        os.close(told)


def _serve_client(client: socket.socket) -> None:
    """Fork for an `interpreter`, and in another fork wait for the end of either."""
    between = os.fork()
    if between:
        client.close()
        os.waitpid(between, 0)
        return
    if os.fork() == 0:
        asked, files, *_ = socket.recv_fds(client, _MOST, 100)
        call = {"unbuffered": False, "before": pickle.dumps(None).hex(), "session": False}
        waits = os.getpid()
        program = os.fork()
        if program == 0:
            _become(call | json.loads(asked), files, waits)
        for file in files:
            os.close(file)
        if client in select.select([client, os.pidfd_open(program)], [], [])[0]:
            os.kill(program, signal.SIGTERM)
        _, status = os.waitpid(program, 0)
        with contextlib.suppress(OSError):
            client.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _address(owner: int) -> str:
    """In memory, of the first server that process `owner` has."""
    return f"\0steptrace-forked-python-{owner}"


def _become(call: Mapping[str, Any], files: Sequence[int], owner: int) -> NoReturn:
    """In a fork: be the process that the interpreter would have made, from its open files to its end."""
    code = 1
    try:
        latest = time.monotonic() + _ADOPTED_WITHIN_S
        while os.getppid() != owner:
            if time.monotonic() > latest:
                raise TimeoutError(f"process {owner}, which wanted this one, is gone")
            time.sleep(0.0005)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.chdir(call["cwd"])
        os.environ.clear()
        os.environ.update(call["environment"])
        _use_files(dict(zip((0, 1, 2, *call["pass"]), files, strict=True)), unbuffered=call["unbuffered"])
        if call["session"]:
            os.setsid()
        before: Callable[[], object] | None = pickle.loads(bytes.fromhex(call["before"]))
        if before is not None:
            before()
        code = _ended_by(lambda: _run(call["arguments"], unbuffered=call["unbuffered"]))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _use_files(files: Mapping[int, int], *, unbuffered: bool) -> None:
    """Have those files open under these numbers, and no other."""
    moved = {number: fcntl.fcntl(file, fcntl.F_DUPFD, 1000) for number, file in files.items()}
    for number, file in moved.items():
        os.dup2(file, number)
    for number in {int(file.name) for file in Path("/proc/self/fd").iterdir()} - set(files):
        with contextlib.suppress(OSError):  # the folder's own
            os.close(number)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    unbuffered = unbuffered or bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, name, errors in ((1, "stdout", "strict"), (2, "stderr", "backslashreplace")):
        binary = open(number, "wb", buffering=0 if unbuffered else -1, closefd=False)  # noqa: SIM115
        text = io.TextIOWrapper(binary, errors=errors, line_buffering=number == 2, write_through=unbuffered)
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


def _run(arguments: Sequence[str], *, unbuffered: bool) -> None:
    """As the interpreter's command line."""
    assert _base is not None
    sys.orig_argv = [arguments[0], *["-u"] * unbuffered, *arguments[1:]]
    program, rest = arguments[1], list(arguments[2:])
    starts_others = program == "-m" and rest[0] in LAUNCHERS
    subprocess.Popen = ForkedPopen if starts_others else _Popen  # type: ignore[misc]
    if starts_others and rest[0] != _FROM_A_FORK:
        _the_server()  # before there are threads
    first = {"-m": str(Path.cwd()), "-c": ""}.get(program, str(Path(program).resolve().parent))
    sys.path[:] = [*_named_path(), *_base.path]
    sys.meta_path[:] = [_Imported(_base.torch), *_base.finders]
    for name in ("sitecustomize", "torch"):
        sys.modules.pop(name, None)
    if importlib.util.find_spec("sitecustomize") is not None:
        importlib.import_module("sitecustomize")
    sys.path.insert(0, first)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if program == "-m":
        sys.argv = ["-m", *rest[1:]]
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
    elif program == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    else:
        sys.argv = [program, *rest]
        main.__file__ = str(Path(program).absolute())
        exec(compile(Path(program).read_bytes(), main.__file__, "exec"), vars(main))


def _named_path() -> list[str]:
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [str(Path(entry).absolute()) for entry in entries if entry]


class _Imported:
    """Finds PyTorch, which has been imported: its module is taken as it is."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> Any:
        return importlib.util.spec_from_loader(name, self, origin=self._module.__file__) if name == "torch" else None

    def create_module(self, _spec: object) -> types.ModuleType:
        return self._module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__, module.__loader__ = self._spec, self._spec.loader if self._spec else None


def _ended_by(run: Callable[[], None]) -> int:
    """Run to the end of an interpreter's life, but for taking apart what was imported; the exit code."""
    code = 0
    try:
        run()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
    except BaseException as error:
        code = 1
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()  # type: ignore[attr-defined]
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _adopt_orphans(yes: int) -> None:
    """Whether processes below this one become its children once their parents have ended."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, yes, 0, 0, 0)


def main(connection: str, listener: str) -> None:
    """Be the first server: import PyTorch, then fork."""
    global _base
    owner = os.getppid()
    for imported in IMPORTED:
        importlib.import_module(imported)
    named = _named_path()
    path = [entry for entry in sys.path[1:] if entry not in named]
    _base = _Base(path, list(sys.meta_path), sys.modules["torch"])
    gc.collect()
    gc.freeze()
    serve(socket.socket(fileno=int(connection)), owner, socket.socket(fileno=int(listener)))


if __name__ == "__main__":
    # By its name, so that programs find this very module.
    importlib.import_module("forked_python").main(*sys.argv[1:])
