"""Runs checks in forks of a process that has imported PyTorch: a start takes 0.1 s of processor time instead of 3.5.

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

#: The environment variable that switches forks off: with `STEPTRACE_FORKS=0` every check starts as a new program.
VARIABLE: Final = "STEPTRACE_FORKS"
#: The modules whose `main` a fork calls instead of `python -m MODULE`.
PROGRAMS: Final = ("steptrace.equivalence.main", "steptrace.predict.main")
#: The ones that this process has imported.
_preloaded = set[str]()


def preload(module: str) -> None:
    """Import one of `PROGRAMS`, so that children of this process that run it are forks.

    Set the environment first: PyTorch reads some of it when it is imported. The forks inherit the state of this
    process, so it must not use CUDA, start threads or keep a `tempfile.TemporaryDirectory`.
    """
    if sys.platform != "linux" or os.environ.get(VARIABLE) == "0":
        return
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # otherwise `torch.cuda.is_available` would use CUDA
    for name in ("torch._dynamo", "torch.profiler", module):
        importlib.import_module(name)
    gc.freeze()  # otherwise a collection in a fork would touch, and so copy, the memory that it shares
    _preloaded.add(module)


def forked_program(command: Sequence[str], environment: Mapping[str, str]) -> Callable[[], NoReturn] | None:
    """A function that a forked child calls in place of a command; None if the command has to be started."""
    if [*command[:2]] != [sys.executable, "-m"] or command[2] not in _preloaded:
        return None
    return lambda: os._exit(_run(command[2], command[3:], environment))


def _run(module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Call a module's `main` as if it had been started by a command line; return the exit code."""
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
    # An interpreter does these two when it ends. `multiprocessing` calls them after a fork, too (popen_fork.py).
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    return int(code)
