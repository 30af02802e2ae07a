"""Operators of libraries and programs that are written in Python: their own code runs, so its calls are seen.

Such an operator is made by `torch.library.custom_op` or `triton_op`, or implemented in a `torch.library.Library`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import wraps
from types import FunctionType, MethodType
from typing import Any, Final

import torch

from steptrace.predict.backend import Replacements
from steptrace.predict.operators import Overload
from steptrace.torch_names import private

#: The operators of `torch.library.custom_op` by name, and their class.
_DEFINITIONS: Final[Any] = private("torch._library.custom_ops.OPDEFS")
_Definition: Final[Any] = private("torch._library.custom_ops.CustomOpDef")
_FUNCTIONS_ON: Final[Any] = private("torch._C._EnableTorchFunction") or nullcontext
#: The dispatch keys whose kernels run for a CUDA tensor, in the order of precedence.
_KEYS: Final = ("CUDA", "CompositeExplicitAutograd")
#: Functions of Python by an overload's name and dispatch key.
_implementations: dict[tuple[str, str], Callable[..., Any]] = {}


def python_code(overload: Overload) -> Callable[..., Any] | None:
    """The Python function that would run with CUDA tensors; None if there is none, or if it is C++."""
    definition = None if _DEFINITIONS is None else _DEFINITIONS.get(overload.name)
    if _Definition is not None and isinstance(definition, _Definition) and definition._opoverload is overload.func:
        functions: dict[str | None, Callable[..., Any]] = definition._backend_fns
        return functions.get("cuda", functions.get(None))
    name = overload.func.name()
    return next((code for key in _KEYS if (code := _implementations.get((name, key))) is not None), None)


def replacements() -> Replacements:
    """The replacements in `torch.library` while a prediction is active: they note the functions in Python."""
    library = torch.library.Library
    implement = library.impl

    @wraps(implement)
    def impl(
        self: Any, op_name: Any, fn: Any, dispatch_key: str = "", *, with_keyset: bool = False, **named: Any
    ) -> Any:
        implement(self, op_name, fn, dispatch_key, with_keyset=with_keyset, **named)  # type: ignore[no-untyped-call]
        if with_keyset or not isinstance(fn, FunctionType | MethodType):
            return
        name = op_name if isinstance(op_name, str) else op_name.name()
        name = name if "::" in name else f"{self.ns}::{name}"
        _implementations[name.removesuffix(".default"), dispatch_key or self.dispatch_key] = fn

    return {(library, "impl"): impl}


def run(
    code: Callable[..., Any],
    modes: Callable[[], Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Run an operator's own code on tensors of the device; `modes` are those in which the device is there."""
    with _FUNCTIONS_ON(), modes():
        return code(*args, **kwargs)
