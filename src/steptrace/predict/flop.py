"""Formulas for the floating-point operations (FLOP) of operators: PyTorch's, and ours where it has none or is wrong."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

#: The types in which operators nest tensors. A tuple, since a union of types would be made anew at each check.
_NESTED: Final = (list, tuple)
#: Dimensions of a tensor with one matrix for each group.
_WITH_GROUPS: Final = 3


def formula_of(overloads: object, packet: str) -> Callable[..., Any] | None:
    """The formula for the operations of an operator; None if there is none.

    Args:
        overloads: the operator, as `torch.ops` has it.
        packet: its name without its namespace.
    """
    return _FLOP.get(packet) or flop_registry.get(overloads)


def counted_flop(formula: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """The operations by a formula of PyTorch's or of the program's; 0 if the formula fails.

    The formula gets the tensors on the CPU, so that a value that it reads is no sync of the program. A formula is made
    for one overload of an operator: it does not know the types that other overloads (`out_dtype`) take by position.
    """
    inside = without_device((list(args), dict(kwargs), result))
    positional, named, output = inside
    for arguments in (positional, [value for value in positional if not isinstance(value, torch.dtype)]):
        with suppress(Exception):  # whatever somebody's formula raises, the program runs on
            return int(formula(*arguments, **named, out_val=output))
    return 0


def without_device(value: Any) -> Any:
    """The value with CPU tensors in place of virtual ones."""
    if isinstance(value, dict):
        return {name: without_device(item) for name, item in value.items()}
    if isinstance(value, _NESTED):
        return type(value)([without_device(item) for item in value])
    return getattr(value, "_inner", value) if isinstance(value, Tensor) else value


def _flop_of_layers(factor: int, input: Tensor, weights: Sequence[Tensor], *_: Any, **__: Any) -> int:
    """A recurrent layer does `factor` operations per value of its matrices and row of its input."""
    rows = input.numel() // input.shape[-1]
    return factor * rows * sum(weight.numel() for weight in weights if weight.dim() == 2)


def _flop_of_convolution_backward(gradient: Tensor, images: Tensor, weight: Tensor, *more: Any, **_: Any) -> int:
    """Each of the two gradients multiplies as often as the forward pass.

    PyTorch's own formula counts the gradient of the weight of a grouped convolution `groups` times.
    """
    transposed = bool(more[4])
    computed = more[7]
    positions = math.prod((images if transposed else gradient).shape[2:])
    forward: int = 2 * images.shape[0] * positions * math.prod(weight.shape)
    return forward * (bool(computed[0]) + bool(computed[1]))


def _flop_of_product(a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    return 2 * a.numel() * b.shape[-1]


def _flop_of_groups(a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    """A product for each group: rows, columns or the terms of the sums are divided among the groups, unless both sides
    have a dimension for them.
    """
    groups = a.shape[0] if a.dim() == b.dim() == _WITH_GROUPS else 1
    return int(2 * groups * math.prod(a.shape[-2:]) * b.shape[-1])


def _flop_of_packed_product(columns: int, a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    """FLOP of a product with packed integer weights; a row of the packed tensor holds `columns` columns."""
    return 2 * a.numel() * b.shape[0] * columns


def _flop_of_added_product(_: Tensor, a: Tensor, b: Tensor, *__: Any, **___: Any) -> int:
    return _flop_of_product(a, b)


def _flop_of_vectors(a: Tensor, *_: Any, **__: Any) -> int:
    """Each element of a matrix or a vector is multiplied once."""
    return 2 * a.numel()


def _flop_of_added_vector(_: Tensor, a: Tensor, *__: Any, **___: Any) -> int:
    return _flop_of_vectors(a)


def _flop_of_distances(a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    """Euclidean distances of all pairs of rows are one product, of rows that have two further columns."""
    return 2 * (a.numel() // a.shape[-1]) * b.shape[-2] * (a.shape[-1] + 2) if a.numel() else 0


def _flop_of_trilinear(*arguments: Any, **_: Any) -> int:
    """The product of three tensors that are repeated along their missing dimensions, and then summed up."""
    shapes = []
    for tensor, missing in zip(arguments[:3], arguments[3:6], strict=True):
        shape = list(tensor.shape)
        for place in missing:
            shape.insert(place, 1)
        shapes.append(shape)
    return int(2 * math.prod(next((size for size in sizes if size != 1), 1) for sizes in zip(*shapes, strict=True)))


#: Formulas in place of PyTorch's, and of operators for which it has none.
_FLOP: Final[Mapping[str, Any]] = {
    "_addmm_activation": _flop_of_added_product,
    "_cudnn_rnn": partial(_flop_of_layers, 2),
    "_cudnn_rnn_backward": partial(_flop_of_layers, 4),
    "_euclidean_dist": _flop_of_distances,
    "_grouped_mm": _flop_of_groups,
    "_int_mm": _flop_of_product,
    "_scaled_grouped_mm": _flop_of_groups,
    "_scaled_grouped_mm_v2": _flop_of_groups,
    "_scaled_mm_v2": _flop_of_product,
    "_trilinear": _flop_of_trilinear,
    "_weight_int4pack_mm": partial(_flop_of_packed_product, 8),
    "_weight_int8pack_mm": partial(_flop_of_packed_product, 1),
    "addbmm": _flop_of_added_product,
    "addbmm_": _flop_of_added_product,
    "addmm_": _flop_of_added_product,
    "addmv": _flop_of_added_vector,
    "addmv_": _flop_of_added_vector,
    "baddbmm_": _flop_of_added_product,
    "convolution_backward": _flop_of_convolution_backward,
    "dot": _flop_of_vectors,
    "mv": _flop_of_vectors,
    "vdot": _flop_of_vectors,
}
