"""Recognises errors that the program's signal handlers raise in code of ours. Needs the standard library only.

Python may run a handler between any two instructions, also in our code. An error that it raises there, for example at
the end of a preempted job, is the program's and has to reach the program.
"""

import signal
import traceback
from collections.abc import Iterator
from functools import partial
from types import CodeType
from typing import Any


def is_of_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler of the program has raised an error."""
    codes = {code for number in signal.valid_signals() for code in _codes(signal.getsignal(number))}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def pass_on(error: BaseException) -> None:
    """Raise an error again if a signal handler of the program has raised it. For code that catches our own errors."""
    if is_of_signal_handler(error):
        raise error


def _codes(handler: Any) -> Iterator[CodeType]:
    """The code objects that a call of a handler runs: of a function, a method, or an object with `__call__`."""
    while isinstance(handler, partial):
        handler = handler.func
    # Not by `getattr`, which would also find `__call__` of the metaclass.
    called = [vars(kind)["__call__"] for kind in type(handler).__mro__ if "__call__" in vars(kind)]
    for function in (handler, *called):
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if isinstance(code, CodeType):
            yield code
