"""What PyTorch's compilers do during a prediction: nothing is compiled, and the program runs as it is written."""

import importlib
from collections.abc import Callable
from functools import wraps
from types import FunctionType, MethodType
from typing import Any

import torch

from steptrace.documents.estimate import COMPILED
from steptrace.predict.recorder import Syncs
from steptrace.predict.tensor import LIMIT, is_virtual


def _not_compiling(recorder: Syncs) -> Callable[..., Any]:
    def compile(model: Any = None, **_: Any) -> Any:
        """Leave a model as it is, and a function but for a note of its calls; a decorator with or without arguments."""
        if model is None:
            return compile
        note = COMPILED, "runs uncompiled here; compiled code may wait in fewer places, or more"
        if not isinstance(model, FunctionType | MethodType):
            recorder.always_unknown(*note)
            return model

        @wraps(model)
        def uncompiled(*args: Any, **kwargs: Any) -> Any:
            recorder.cannot_judge(*note)
            return model(*args, **kwargs)

        return uncompiled

    return compile


def _exported(export: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.export.export`, which traces with tensors that stand for others on a device that has none."""

    @wraps(export)
    def exported(mod: Any, args: Any = (), *more: Any, **named: Any) -> Any:
        if any(map(is_virtual, (*mod.parameters(), *mod.buffers(), *args))):
            raise NotImplementedError(LIMIT.format("torch.export", "export on the CPU, or after the steps"))
        return export(mod, args, *more, **named)

    return exported


def _flex_attention(operator: Callable[..., Any]) -> Callable[..., Any]:
    """`flex_attention` as it runs uncompiled; its operator has a gradient for PyTorch's own devices only."""
    dense = importlib.import_module("torch._higher_order_ops.flex_attention").sdpa_dense

    def attention(query: Any, *args: Any, **named: Any) -> Any:
        return (dense if is_virtual(query) else operator)(query, *args, **named)

    return attention


def replacements(recorder: Syncs) -> dict[tuple[Any, str], Any]:
    """By owner and name: what is called in place of PyTorch's own."""
    flex: Any = importlib.import_module("torch.nn.attention.flex_attention")
    return {
        (torch, "compile"): _not_compiling(recorder),
        (torch.export, "export"): _exported(torch.export.export),
        (flex, "flex_attention_hop"): _flex_attention(flex.flex_attention_hop),
    }
