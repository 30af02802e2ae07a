"""Runs checks in forks of a process that has imported PyTorch: 0.1 s of processor time each, not 3.5.

Timed trainings are never forked. Forks share the seed of Python's hashes and the layout of addresses, so repeats that
are forks of one process would not be independent of each other.
"""

import atexit
import gc
import importlib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn

#: `STEPTRACE_FORKS=0`: every check is started as a new program.
VARIABLE: Final = "STEPTRACE_FORKS"
#: Modules whose `main` a fork may call in the place of `python -m MODULE`.
PROGRAMS: Final = ("steptrace.equivalence.main", "steptrace.predict.main")
#: Those that this process has imported.
_preloaded = set[str]()


def preload(module: str) -> None:
    """Import one of `PROGRAMS`, so that children of this process that run it are forks.

    The environment has to be final before, since PyTorch reads some of it when it is imported. The forks inherit what
    this process has, so it must not use CUDA, start threads or keep a `tempfile.TemporaryDirectory`.
    """
    if sys.platform != "linux" or os.environ.get(VARIABLE) == "0":
        return
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # a question for GPUs would use CUDA
    for name in ("torch._dynamo", "torch.profiler", module):
        importlib.import_module(name)
    gc.freeze()  # otherwise each fork's collections would look at, and so copy, what it shares
    _preloaded.add(module)


def forked_program(command: Sequence[str], environment: Mapping[str, str]) -> Callable[[], NoReturn] | None:
    """A function that a forked child calls in the place of a command; None where the command has to be started."""
    if [*command[:2]] != [sys.executable, "-m"] or command[2] not in _preloaded:
        return None
    return lambda: os._exit(_run(command[2], command[3:], environment))


def _run(module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Call a module's `main` as if it had been started so; return the exit code."""
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    os.environ.clear()
    os.environ.update(environment)
    try:
        code = importlib.import_module(module).main(arguments)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    # What the interpreter does at its end. `multiprocessing` calls the same two after a fork (popen_fork.py).
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    return int(code)
