"""Copies of PyTorch's Python functions that skip the check for `__torch_function__` modes."""

from collections.abc import Callable, Mapping
from functools import cache
from types import FunctionType
from typing import Any


class _Globals(dict[str, Any]):
    """A function's globals, some of them replaced."""

    def __init__(self, behind: Mapping[str, Any], replaced: Mapping[str, Any]) -> None:
        super().__init__(replaced)
        self._behind = behind

    def __missing__(self, name: str) -> Any:
        return self._behind[name]


@cache
def unchecked(func: Any) -> Callable[..., Any] | None:
    """A copy of one of PyTorch's Python functions that skips the check for `__torch_function__` modes.

    PyTorch has just asked this mode, and it leaves a mode out while it asks it. So "cuda" would mean nothing to the
    functions that the function calls, nor to the program's hooks in a backward pass. To enter the mode again does not
    help: PyTorch would ask it again without end, and a mode cannot decline, since whatever it returns is the result.

    The copy has its own globals, in which `has_torch_function` and the like return False. They are not replaced in
    PyTorch's modules, because `torch.jit.script` knows them by identity, and a program that scripts a module would
    fail. None for a function that is not written in Python, or that has no such check.
    """
    while hasattr(func, "__wrapped__") and not func.__globals__["__name__"].startswith("torch."):
        func = func.__wrapped__  # someone's wrapper: PyTorch's own function inside it asks, so the wrapper has run
    if not isinstance(func, FunctionType):
        return None
    used = (name for name in func.__code__.co_names if name.startswith("has_torch_function"))
    checks = [name for name in used if name in func.__globals__]
    if not checks:
        return None
    names = _Globals(func.__globals__, dict.fromkeys(checks, lambda *_: False))
    names["__builtins__"] = func.__globals__["__builtins__"]
    copy = FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy
