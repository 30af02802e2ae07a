"""Code that a program compiles by `torch.compile`: where it begins and ends, and which syncs compiling takes away.

The program runs as it is written, on the virtual device. What runs in compiled code is marked, as are the autograd
nodes that it makes, so that their backward pass counts as compiled, too.

Inductor folds small constants into kernels and moves tensors that code makes on the CPU to the GPU, so that copies of
them are gone. What breaks the graph (`.item()`, a size that depends on data) waits as it does uncompiled, at its line.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final

import torch
from torch import Tensor, nn

from steptrace.documents.estimate import COMPILED
from steptrace.predict.backend import Replacements
from steptrace.predict.memory import Marks
from steptrace.predict.operators import Overload, tensors_of
from steptrace.predict.recorder import Syncs
from steptrace.predict.tensor import is_virtual
from steptrace.torch_names import private

#: Why the syncs of a call of compiled code are not known for sure.
NOTE: Final = "a compiled {} runs uncompiled here; compiled code may wait in fewer places, or more"
#: The backend that fuses.
_INDUCTOR: Final = "inductor"
#: A constant of at most so many values, in one dimension, is written into the kernel that reads it.
_INLINED: Final = 8
#: Operators that make a tensor of arguments that are no tensors: Inductor lets the GPU make it.
_CONSTRUCTORS: Final = frozenset(
    f"aten::{name}"
    for name in (
        "arange", "empty", "empty_strided", "eye", "full", "full_like", "linspace", "logspace", "ones", "ones_like",
        "scalar_tensor", "tril_indices", "triu_indices", "zeros", "zeros_like",
    )
)  # fmt: skip
#: What `torch.tensor` and its like do with a tensor of the values that they are given.
_LITERAL: Final = "aten::lift_fresh"
_COPIED: Final = frozenset(("aten::_to_copy", "aten::copy_"))
#: A single value given as a tensor is an operand of the kernel, wherever it lies.
_SCALAR_OPERANDS: Final = frozenset(("aten::where", "aten::masked_fill", "aten::masked_fill_"))
_INDEXED: Final = frozenset(("aten::index", "aten::_unsafe_index"))
_ASSIGNED: Final = frozenset(("aten::index_put", "aten::index_put_", "aten::_index_put_impl_"))

#: Tensors on the CPU that code to compile has made of nothing but constants.
_made: Final = Marks()
_literals: Final = Marks()


@dataclass(frozen=True, eq=False)
class Region:
    """One call of a compiled module or function; `fuses`: whether its backend is Inductor."""

    fuses: bool


def replacements(recorder: Syncs) -> Replacements:
    """What of the compiler is another one while a prediction is active."""
    return {(torch, "compile"): _following(recorder)}


def release() -> None:
    """Forget the tensors of the program."""
    _made.clear()
    _literals.clear()


def _following(recorder: Syncs) -> Callable[..., Any]:
    def compile(model: Any = None, **options: Any) -> Any:
        """A module or function that runs as it is, and is noted at each call; a decorator with or without arguments."""
        if model is None:
            return lambda model: compile(model, **options)
        if options.get("disable"):
            return model
        fuses = options.get("backend") in (None, _INDUCTOR)
        if isinstance(model, nn.Module):
            context = _Context(recorder, "module", fuses=fuses)
            optimized = private("torch._dynamo.eval_frame.OptimizedModule")
            if optimized is None:
                model.forward = context(model.forward)
                return model
            return optimized(model, context)
        return _Context(recorder, "function", fuses=fuses)(model)

    return compile


class _Context:
    """What makes a function one that is noted when it is called, as `OptimizedModule` expects it."""

    def __init__(self, recorder: Syncs, what: str, *, fuses: bool) -> None:
        self._recorder, self._note, self._fuses = recorder, NOTE.format(what), fuses

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self._recorder

        @wraps(function)
        def uncompiled(*args: Any, **kwargs: Any) -> Any:
            if recorder.region is not None:  # compiled with the code that calls it
                return function(*args, **kwargs)
            recorder.cannot_judge(COMPILED, self._note)
            with _running(recorder, Region(self._fuses)):
                return function(*args, **kwargs)

        return uncompiled

    def __deepcopy__(self, _: object) -> "_Context":
        return self


@contextmanager
def _running(recorder: Syncs, region: Region) -> Iterator[None]:
    before, recorder.region = recorder.region, region
    try:
        yield
    finally:
        recorder.region = before


def runs_on_host(overload: Overload, args: Sequence[Any], result: Any) -> None:
    """Note what code to compile makes on the CPU of constants."""
    if not isinstance(result, Tensor):
        return
    if overload.name == _LITERAL:
        _literals.add(result)
        return
    sources = tensors_of(args)
    of_constants = all(source in _made for source in sources) if sources else overload.name in _CONSTRUCTORS
    if of_constants or (overload.name in _CONSTRUCTORS and overload.name.endswith("_like")):
        _made.add(result)


def takes_away(overload: Overload, kind: str, args: Sequence[Any]) -> bool:
    """Whether an operator that waits, for a copy of this kind, does not wait where Inductor compiles it."""
    if overload.name in _COPIED:
        source = args[0 if overload.copied is None else overload.copied]
        return not is_virtual(source) and _is_constant(source)
    if overload.name in _SCALAR_OPERANDS:
        return True
    if overload.name in _INDEXED:
        return kind == "h2d_copy" and all(
            _is_constant(index) for index in args[1] if index is not None and not is_virtual(index)
        )
    if overload.name in _ASSIGNED:
        indices = [index for index in args[1] if index is not None]
        # Of one value, an assignment by a mask is a choice between two values.
        return len(indices) == 1 and indices[0].dtype == torch.bool and args[2].numel() == 1
    return False


def _is_constant(tensor: Tensor) -> bool:
    """Whether a tensor on the CPU is made in code to compile, and no copy of it is left there."""
    return tensor in _made or (tensor in _literals and tensor.dim() <= 1 and tensor.numel() <= _INLINED)
