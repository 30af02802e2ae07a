"""Lazy modules (`nn.LazyLinear`), whose parameters have a device before they have a shape.

Until they have one they stay CPU tensors with a note of their device, since they must be of PyTorch's own classes.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

_LAZY: Final[Any] = (UninitializedParameter, UninitializedBuffer)
#: Of which both are.
_MIXIN: Final[Any] = UninitializedParameter.__mro__[1]


def _making(make: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(make)

    @wraps(make)
    def __new__(*args: Any, **kwargs: Any) -> Any:  # noqa: N807
        bound = signature.bind(*args, **kwargs)
        wanted = bound.arguments.get("device")
        bound.arguments["device"] = "cpu"
        made = make(*bound.args, **bound.kwargs)
        made._device = torch.get_default_device() if wanted is None else torch.device(wanted)
        return made

    return __new__


def _materializing(materialize: Callable[..., None]) -> Callable[..., None]:
    @wraps(materialize)
    def materialized(self: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        device = getattr(self, "_device", "cpu") if device is None else device
        if torch.device(device).type == "cpu":
            materialize(self, shape, device, dtype)
            return
        new = torch.empty(shape, device=device, dtype=self.data.dtype if dtype is None else dtype)
        self.__class__ = self.cls_to_become
        new = nn.Parameter(new, self.requires_grad) if isinstance(self, nn.Parameter) else new
        torch.utils.swap_tensors(self, new)  # type: ignore[no-untyped-call]

    return materialized


@contextmanager
def moved(module: nn.Module, convert: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Keep a module's own lazy tensors from being converted meanwhile, and note what becomes of them."""
    owners: list[dict[str, Any]] = [module._parameters, module._buffers]
    named: list[tuple[dict[str, Any], str, Any]] = [(own, *item) for own in owners for item in own.items()]
    lazy = [(own, name, value) for own, name, value in named if isinstance(value, _LAZY)]
    for own, name, _ in lazy:
        own[name] = None
    try:
        yield
    finally:
        for own, name, value in lazy:
            own[name] = value
    for _, _, value in lazy:
        converted = convert(torch.empty(0, dtype=value.data.dtype, device=getattr(value, "_device", "cpu")))
        value._device = converted.device
        value.data = torch.empty(0, dtype=converted.dtype, device="cpu")


def replacements() -> dict[tuple[Any, str], Any]:
    """What of PyTorch is another one while a prediction is active."""
    makers = {(kind, "__new__"): _making(kind.__new__) for kind in _LAZY}
    return {**makers, (_MIXIN, "materialize"): _materializing(_MIXIN.materialize)}
