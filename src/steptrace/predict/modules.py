"""Modules of torch.nn during a prediction: moved and converted, lazy, exported.

The parameters of lazy ones (`nn.LazyLinear`) have a device before they have a shape. Until they have one they stay CPU
tensors with a note of their device, since they must be of PyTorch's own classes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from steptrace.foreign_messages import TORCH_CANNOT_SWAP
from steptrace.predict.backend import Replacements
from steptrace.predict.limit import cannot_follow
from steptrace.predict.pytorch import TensorBase, functions_off, replacing
from steptrace.predict.tensor import into_class, is_virtual, known_class
from steptrace.torch_names import private

pytree: Any = private("torch.utils._pytree")
_Function = Callable[..., Any]
_LAZY: Final[Any] = (UninitializedParameter, UninitializedBuffer)
#: The class that lazy parameters and lazy buffers inherit.
_MIXIN: Final[Any] = private("torch.nn.parameter.UninitializedTensorMixin")


def replacements() -> Replacements:
    """The replacements in torch.nn and torch.export while a prediction is active."""
    return {
        (torch.export, "export"): _exported(torch.export.export),
        (nn.Parameter, "__new__"): staticmethod(_new(nn.Parameter.__new__)),
        **replacing("torch.nn.Module._apply", _converting),
        **replacing("torch.Tensor._make_subclass", lambda make: staticmethod(_making(make))),
        **(
            {}
            if _MIXIN is None
            else {(_MIXIN, "materialize"): _materializing(_MIXIN.materialize), **_PROPERTIES_OF_LAZY}
        ),
        **replacing("torch.nn.attention.flex_attention.flex_attention_hop", _flex_attention),
        **replacing("torch._higher_order_ops.cond.cond_op", lambda _: _cond),
        **replacing("torch._higher_order_ops.while_loop.while_loop_op", lambda _: _while_loop),
        **replacing("torch._higher_order_ops.scan.scan_op", lambda _: _scan),
        **replacing("torch._higher_order_ops.associative_scan.associative_scan_op", lambda _: _associative_scan),
        **replacing("torch._higher_order_ops.map.map_impl", lambda _: _map),
    }


# What `torch.cond` and its like call. The host reads conditions, uncompiled as in the code that Inductor writes.


def _cond(condition: Any, if_true: _Function, if_false: _Function, operands: Sequence[Any] = ()) -> Any:
    results = if_true(*operands) if condition else if_false(*operands)
    if not isinstance(condition, Tensor) or not torch.is_grad_enabled():
        return results
    leaves, form = pytree.tree_flatten(results)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    read = iter(_ConditionOfGradients.apply(condition, *tensors) if tensors else ())  # type: ignore[no-untyped-call]
    leaves = [next(read) if isinstance(leaf, Tensor) and leaf.requires_grad else leaf for leaf in leaves]
    return pytree.tree_unflatten(leaves, form)


class _ConditionOfGradients(torch.autograd.Function):
    """The results of a branch. The backward pass of `torch.cond` is another one: the host reads its condition again."""

    @staticmethod
    def forward(ctx: Any, condition: Tensor, *results: Tensor) -> tuple[Tensor, ...]:
        ctx.condition = condition
        return tuple(result.view_as(result) for result in results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        bool(ctx.condition)
        return None, *gradients


def _while_loop(
    condition: _Function, body: _Function, carried: Sequence[Any], additional_inputs: Sequence[Any] = ()
) -> tuple[Any, ...]:
    values = tuple(carried)
    while condition(*values, *additional_inputs):
        values = tuple(body(*values, *additional_inputs))
    return values


def _scan(
    combine: _Function, first: Sequence[Any], rows: Sequence[Tensor], additional_inputs: Sequence[Any] = ()
) -> tuple[Any, ...]:
    carried = tuple(first)
    results = []
    for row in zip(*rows, strict=True):
        values = tuple(combine(*carried, *row, *additional_inputs))
        result = values[len(carried) :]
        carried = values[: len(carried)]
        results.append(result)
    return (*carried, *map(torch.stack, zip(*results, strict=True)))


def _associative_scan(combine: _Function, rows: Sequence[Tensor], additional_inputs: Sequence[Any] = ()) -> Any:
    """Each pass combines rows that are twice as far apart as in the one before.

    PyTorch passes a partial function; its keyword `spec` is the form of the rows, which Dynamo gives to the result.
    """
    values = tuple(rows)
    distance = 1
    while distance < len(values[0]):
        before = [value[:-distance] for value in values]
        after = [value[distance:] for value in values]
        combined = pytree.tree_leaves(combine(*before, *after, *additional_inputs))
        values = tuple(torch.cat((value[:distance], part)) for value, part in zip(values, combined, strict=True))
        distance *= 2
    spec = getattr(combine, "keywords", {}).get("spec")
    return values if spec is None else pytree.tree_unflatten(values, spec)


def _map(function: _Function, rows: Sequence[Tensor], operands: Sequence[Any] = ()) -> Any:
    results = [function(*row, *operands) for row in zip(*rows, strict=True)]
    return pytree.tree_map(lambda *parts: torch.stack(parts), *results)  # in the form that the function returns


def _converting(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Converts or moves a module's tensors.

    `Module.half()` in inference mode leaves parameters that can be trained, as it does on CUDA. A parameter that a
    graph still holds, as `torch.nn.utils.weight_norm` does, cannot be swapped: a new one takes its place.
    """

    @wraps(apply)
    def _apply(self: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
        normal = torch.inference_mode(mode=False) if torch.is_inference_mode_enabled() else nullcontext()
        with normal, _lazy_kept(self, fn):
            try:
                return apply(self, _content(fn), *args, **kwargs)
            except RuntimeError as error:
                if TORCH_CANNOT_SWAP.find(error) is None:
                    raise
                torch.__future__.set_swap_module_params_on_conversion(False)
                try:
                    return apply(self, fn, *args, **kwargs)
                finally:
                    torch.__future__.set_swap_module_params_on_conversion(True)

    return _apply


def _content(convert: _Function) -> _Function:
    """The conversion of a tensor, whose result is a plain tensor where it would be of a class of parameters.

    A parameter gets its new content by a swap here, for which PyTorch makes a parameter of the result. It refuses to
    make one of a tensor of such a class. The parameter itself keeps its class, as on CUDA.
    """

    def converted(tensor: Tensor) -> Tensor:
        result: Tensor = convert(tensor)
        if not isinstance(result, nn.Parameter) or isinstance(result, _LAZY) or known_class(result) is nn.Parameter:
            return result
        with functions_off():
            return result.detach().as_subclass(Tensor)

    return converted


def _new(new: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a parameter of a tensor, also of one of the virtual device, or of a class of the program."""

    def __new__(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:  # noqa: FBT001, FBT002, N807 - torch's
        if is_virtual(data) and not data.is_nested and known_class(data) in (Tensor, nn.Parameter):
            with functions_off():
                return into_class(data.detach(), cls).requires_grad_(requires_grad)
        return new(cls, data, requires_grad)

    return __new__


def _making(make: Callable[..., Tensor]) -> Callable[..., Any]:
    """Makes a tensor one of a class. A lazy tensor stays on the CPU."""

    def make_subclass(cls: Any, data: Tensor, *args: Any, **kwargs: Any) -> Any:
        is_lazy = issubclass(cls, _LAZY) and is_virtual(data)
        if is_virtual(data) and not is_lazy:
            with functions_off():
                needs_gradient = bool(args[0] if args else kwargs.get("require_grad", False))
                return into_class(data.detach(), cls).requires_grad_(needs_gradient)
        parameter: Any = make(cls, torch.empty_like(data, device="cpu") if is_lazy else data, *args, **kwargs)
        if is_lazy:
            parameter._device = data.device
        return parameter

    return make_subclass


def _materializing(materialize: Callable[..., None]) -> Callable[..., None]:
    @wraps(materialize)
    def materialized(self: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        materialize(self, shape, "cpu", dtype)
        device = getattr(self, "_device", "cpu") if device is None else device
        if torch.device(device).type != "cpu":
            self.data = torch.empty(shape, device=device, dtype=self.dtype)

    return materialized


def _device_of_lazy(tensor: Any) -> torch.device:
    """The device of a lazy tensor as the program knows it; the tensor itself stays on the CPU."""
    known: torch.device | None = tensor.__dict__.get("_device")
    if known is not None:
        return known
    with functions_off():
        return TensorBase.device.__get__(tensor)  # type: ignore[no-any-return]


_PROPERTIES_OF_LAZY: Final = {
    (_MIXIN, "device"): property(_device_of_lazy),
    (_MIXIN, "is_cuda"): property(lambda tensor: _device_of_lazy(tensor).type == "cuda"),
}


@contextmanager
def _lazy_kept(module: nn.Module, convert: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Keep a module's own lazy tensors from being converted meanwhile, and note what becomes of them."""
    owners: list[dict[str, Any]] = [module._parameters, module._buffers]
    named: list[tuple[dict[str, Any], str, Any]] = [(tensors, *item) for tensors in owners for item in tensors.items()]
    lazy = [(tensors, name, value) for tensors, name, value in named if isinstance(value, _LAZY)]
    for tensors, name, _ in lazy:
        tensors[name] = None
    try:
        yield
    finally:
        for tensors, name, value in lazy:
            tensors[name] = value
    for _, _, value in lazy:
        converted = convert(torch.empty(0, dtype=value.data.dtype, device=getattr(value, "_device", "cpu")))
        value._device = converted.device
        value.data = torch.empty(0, dtype=converted.dtype, device="cpu")


def _exported(export: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.export.export`, refused for a module or arguments on the virtual device, which has no fake tensors."""

    @wraps(export)
    def exported(mod: Any, args: Any = (), *additional_inputs: Any, **named: Any) -> Any:
        if any(map(is_virtual, (*mod.parameters(), *mod.buffers(), *args))):
            raise cannot_follow("torch.export", "export on the CPU, or after the steps")
        return export(mod, args, *additional_inputs, **named)

    return exported


def _flex_attention(operator: Callable[..., Any]) -> Callable[..., Any]:
    """`flex_attention` as it runs uncompiled; its operator has a gradient for PyTorch's own devices only."""
    dense = private("torch._higher_order_ops.flex_attention.sdpa_dense")

    def attention(query: Any, *args: Any, **named: Any) -> Any:
        return (dense if dense is not None and is_virtual(query) else operator)(query, *args, **named)

    return attention
