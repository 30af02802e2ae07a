"""Does some work in a forked child process, which may fail or change things without harm to this one."""

import os
import pickle
import resource
import select
import signal
import time
import warnings
from collections.abc import Callable
from typing import Final, TypeVar

import torch

#: A child that takes more processor time, or three times as long, is ended.
_LONGEST_S: Final = 300
_Result = TypeVar("_Result")


def in_child(work: Callable[[], _Result]) -> _Result | None:
    """Do some work in a forked child, and return its result; None if the child ends without one or takes too long.

    PyTorch's C++ ends the process if autograd meets a device that does not exist, and Dynamo runs code of the program,
    which may change the program's state. In a child neither harms the program.
    """
    read, write = os.pipe()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 and later warn of threads
            child = os.fork()
    except OSError:  # there is not enough memory for another process
        os.close(read)
        os.close(write)
        return None
    if not child:
        status = 1
        try:
            os.close(read)
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            torch.set_num_threads(1)
            resource.setrlimit(resource.RLIMIT_CPU, (_LONGEST_S + int(time.process_time()), resource.RLIM_INFINITY))
            with os.fdopen(write, "wb") as pipe:
                pickle.dump(work(), pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    content = b""
    ends = time.monotonic() + 3 * _LONGEST_S
    poll = select.poll()  # unlike `select`, it takes any number of open files
    poll.register(read, select.POLLIN)
    with os.fdopen(read, "rb", buffering=0) as pipe:
        while (left := ends - time.monotonic()) > 0 and poll.poll(1000 * left):
            part = pipe.read(1 << 16)
            if not part:
                break
            content += part
        else:
            os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if status or not content:
        return None
    result: _Result = pickle.loads(content)
    return result
