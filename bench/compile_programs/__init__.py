"""Small programs that compile something, each for one thing that Dynamo does: see bench/compile_agreement.py.

A program gets a device and a form of `torch.compile`. `PROGRAMS` holds all of them by `module.name`.
"""

import importlib
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

#: Like `torch.compile`, with its arguments.
Compile = Callable[..., Any]
#: Runs on a device and compiles what it compiles by the second argument.
Program = Callable[[str, Compile], object]
PROGRAMS: dict[str, Program] = {}
#: The modules of this package that hold programs.
GROUPS: Final = ("breaks", "python", "recompilations", "training", "settings", "operators", "modules")


def program(run: Program) -> Program:
    """Register a program."""
    name = f"{run.__module__.rpartition('.')[2]}.{run.__name__.strip('_')}"
    if name in PROGRAMS:
        raise ValueError(f"two programs named {name}")
    PROGRAMS[name] = run
    return run


def called(*shapes: tuple[int, ...], grad: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Program]:
    """Register a program that compiles a function of a tensor, and calls it for each of these shapes.

    Args:
        shapes: by default one call with 8 elements.
        grad: whether the tensor needs a gradient.
        options: arguments of `torch.compile`.
    """

    def registered(function: Callable[[Tensor], Any]) -> Program:
        def run(device: str, compile: Compile) -> None:
            compiled = compile(function, **options)
            for shape in shapes or ((8,),):
                compiled(torch.ones(*shape, device=device, requires_grad=grad))

        run.__name__ = function.__name__
        run.__module__ = function.__module__
        return program(run)

    return registered


def load() -> dict[str, Program]:
    """All programs, by name."""
    for name in GROUPS:
        importlib.import_module(f"{__name__}.{name}")
    return PROGRAMS
