"""Trainings and checks, forked from a process that has imported PyTorch: 0.1 s of processor time, not 3.5.

    python -IS forked.py MODULE ARGUMENTS...    as `python -m MODULE ARGUMENTS...`, by the server if there is one

A call of the workflow starts the server. A job (this file as a program) has it fork a process that runs MODULE with the
job's environment, folder and output, with the same results; what MODULE starts of `PROGRAMS` is forked in turn. When
the job, the server or the workflow ends, the fork gets SIGTERM.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

#: Names the server's socket; `STEPTRACE_FORKS=0`: no server.
VARIABLE: Final = "STEPTRACE_FORKS"
#: What is forked in the place of `python -m MODULE`, and the module whose `main` that is.
PROGRAMS: Final = {name: name for name in ("steptrace.train.equivalence", "steptrace.predict.main")}
PROGRAMS["steptrace.train"] = "steptrace.train.__main__"


def start_server() -> None:
    """Start a server that lives as long as this process."""
    if sys.platform != "linux" or VARIABLE in os.environ:
        return
    from steptrace.files import scratch_folder  # a job that is run as a program needs the standard library alone

    folder = scratch_folder()  # nobody else's
    atexit.register(folder.cleanup)
    os.environ[VARIABLE] = f"{folder.name}/socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as jobs:
        jobs.bind(os.environ[VARIABLE])
        jobs.listen(64)
        serve = f"from steptrace.train.forked import _serve; _serve({jobs.fileno()}, {os.getpid()})"
        subprocess.Popen([sys.executable, "-c", serve], pass_fds=[jobs.fileno()], start_new_session=True)


def _serve(listening: int, parent: int) -> NoReturn:
    from steptrace.processes import die_with

    die_with(parent)
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # a fork cannot use CUDA after its parent has
    for module in ("torch._dynamo", "torch.profiler", "steptrace.workflow.checks", *PROGRAMS.values()):
        importlib.import_module(module)
    gc.freeze()  # or each fork's collections would look at, and so copy, what it shares
    jobs, server = socket.socket(fileno=listening), os.getpid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    while True:
        job, _ = jobs.accept()
        if os.fork() == 0:
            die_with(server, signal.SIGTERM)
            jobs.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _do(job)
        job.close()


def _do(job: socket.socket) -> NoReturn:
    """Run what a job asks for, and tell it the exit code."""
    request, files, *_ = socket.recv_fds(job, 1 << 20, 3)
    (module, *arguments), folder, environment = json.loads(request)
    job.send(b"started")
    for command, value in (fcntl.F_SETOWN, os.getpid()), (fcntl.F_SETSIG, signal.SIGTERM), (fcntl.F_SETFL, os.O_ASYNC):
        fcntl.fcntl(job, command, value)  # SIGTERM when the other end is closed
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.chdir(folder)
    job.send(b"%d" % _run(module, arguments, environment))
    os._exit(0)


def forked_program(command: Sequence[str], environment: Mapping[str, str]) -> Callable[[], NoReturn] | None:
    """What a child of this process runs in the place of one of `PROGRAMS`; None for others, or without PyTorch here."""
    is_fork = os.environ.get(VARIABLE, "0") != "0" and "torch" in sys.modules  # of the server: nothing else has both
    if not is_fork or [*command[:2]] != [sys.executable, "-m"] or command[2] not in PROGRAMS:
        return None
    return lambda: os._exit(_run(PROGRAMS[command[2]], command[3:], environment))


def _run(module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Call a module's `main` as if it had been started so; return the exit code."""
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    os.environ.clear()
    os.environ.update(environment)
    if threads := environment.get("OMP_NUM_THREADS"):  # PyTorch reads it when it is imported
        sys.modules["torch"].set_num_threads(int(threads))
    try:
        code = importlib.import_module(module).main(arguments)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    return int(code)


def _job(command: Sequence[str]) -> NoReturn:
    server, parent, started = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), os.getppid(), b""
    with contextlib.suppress(OSError):
        server.connect(os.environ.get(VARIABLE, ""))
        socket.send_fds(server, [json.dumps([command, str(Path.cwd()), dict(os.environ)]).encode()], [0, 1, 2])
        started = server.recv(100)
    if not started and os.getppid() == parent:
        os.execv(sys.executable, [sys.executable, "-m", *command])
    sys.exit(int((started and server.recv(100)) or 1))


if __name__ == "__main__":
    _job(sys.argv[1:])
