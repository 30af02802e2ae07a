"""Turns an operator recorded in a trace into one that can be estimated: types, sizes, strides of its inputs, and FLOP.

A trace does not record outputs. For products, softmax, normalisation and elementwise operators they follow from the
inputs, and for convolutions from their other arguments as well. Others cannot be estimated.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from steptrace.documents.estimate import OperatorCalls, TensorSpec
from steptrace.estimate.kernel_classes import (
    ATTENTION,
    ELEMENTWISE,
    FORMATS,
    ONE_BLOCK,
    OPERATORS,
    POOLING,
    REDUCTION,
    STRIDED,
    kind_of,
)
from steptrace.estimate.traced_convolution import recorded_convolution

_TYPES: Final = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "long int": "int64",
    "int": "int32", "short int": "int16", "signed char": "int8", "unsigned char": "uint8", "bool": "bool",
}  # fmt: skip
#: Classes whose result has the shape of the first input.
_NORMS: Final = ("batch norm", "group norm", "layer norm", "softmax", "log softmax")
_LIST: Final = msgspec.json.Decoder(list[str | list[str]])
_SIZES: Final = msgspec.json.Decoder(list[list[int]])


def recorded_call(name: str, types: str, sizes: str, strides: str, settings: str = "null") -> OperatorCalls | None:
    """One call of an operator; None if the trace's record does not say what it reads and writes.

    Args:
        name: such as `aten::mm`.
        types: the JSON list `Input type` of the trace: one type for each argument.
        sizes: the JSON list `Input Dims`: one list of integers for each argument.
        strides: the JSON list `Input Strides`; `null` means that tensors are dense.
        settings: the JSON list `Concrete Inputs`, which convolutions need: one text for each argument.
    """
    try:
        of_types, of_sizes = _LIST.decode(types), _SIZES.decode(sizes)
        of_strides = _SIZES.decode(strides) if strides != "null" else [[] for _ in of_sizes]
    except (msgspec.DecodeError, RecursionError):
        return None
    if not name.startswith("aten::") or not len(of_types) == len(of_sizes) == len(of_strides):
        return None
    inputs = tuple(
        TensorSpec(shape=tuple(size), strides=tuple(stride) if len(stride) == len(size) else dense(size), dtype=dtype)
        for kind, size, stride in zip(of_types, of_sizes, of_strides, strict=True)
        if isinstance(kind, str) and (dtype := _TYPES.get(kind)) is not None
    )
    base = name.removeprefix("aten::")
    if base in OPERATORS["convolution"]["names"]:
        outputs, work = _of_convolution(base, inputs, of_sizes, settings)
    else:
        outputs = _output(base, inputs)
        work = flop(base, of_sizes)
    if outputs is None:
        return None
    return OperatorCalls(
        name=f"aten.{base}.default",
        inputs=inputs,
        outputs=outputs,
        is_view=False,
        flop=work,
        calls=1,
        phase="other",
        file=None,
        line=None,
    )


def _of_convolution(
    name: str, inputs: tuple[TensorSpec, ...], sizes: Sequence[Sequence[int]], settings: str
) -> tuple[tuple[TensorSpec, ...] | None, int]:
    """What a convolution returns, None if that is not known, and its FLOP."""
    first = sizes[: 3 if "backward" in name else 2]
    convolution = recorded_convolution(name, sizes, settings)
    # Each of the first arguments is a tensor of a known type: other functions tell them by their places.
    if convolution is None or [tensor.shape for tensor in inputs[: len(first)]] != [tuple(size) for size in first]:
        return None, 0
    return tuple(_dense_tensor(shape, inputs[0]) for shape in convolution.outputs), convolution.flop


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor without gaps."""
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))


def _output(name: str, inputs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...] | None:
    """What the operator returns: empty if that is too small to matter, None if it is not known."""
    # In the backward pass of a loss the first input is the gradient of the loss, a single number.
    first = next((tensor for tensor in inputs if tensor.shape), None)
    if first is None:
        return None
    if name in ("mm", "bmm"):
        return (_dense_tensor((*first.shape[:-1], inputs[1].shape[-1]), first),)
    if name in ("addmm", "baddbmm"):
        return (_dense_tensor((*inputs[1].shape[:-1], inputs[2].shape[-1]), first),)
    if name in OPERATORS["product"]["names"] or name in OPERATORS["convolution"]["names"]:
        return None
    call = OperatorCalls(
        name=f"aten.{name}.default", inputs=inputs, outputs=(first,), is_view=False, flop=0, calls=1, phase="other",
        file=None, line=None,
    )  # fmt: skip
    kind = kind_of(call, FORMATS.get(first.dtype, "32"))
    if kind.startswith(ATTENTION):
        return (first,) if flop(name, [tensor.shape for tensor in inputs]) else None
    if kind.startswith(_NORMS):
        return (first,)
    if kind in (REDUCTION, ONE_BLOCK) or kind.startswith(POOLING):
        # The result has the shape of the tensor that was reduced, which is the second input of the backward pass.
        return (_dense_tensor(inputs[1].shape, inputs[1]),) if name.endswith("_backward") and len(inputs) > 1 else ()
    if kind not in (ELEMENTWISE, STRIDED):
        return None
    largest = max((tensor for tensor in inputs), key=lambda tensor: math.prod(tensor.shape))
    return (_dense_tensor(largest.shape, largest),)


def _dense_tensor(shape: tuple[int, ...], like: TensorSpec) -> TensorSpec:
    return TensorSpec(shape=shape, strides=dense(shape), dtype=like.dtype)


Shapes = Sequence[Sequence[int]]


def flop(name: str, inputs: Shapes) -> int:
    """FLOP of one call of a product or of attention; 0 without a formula.

    Args:
        name: such as `mm`, for `aten::mm` and `aten.mm.default`.
        inputs: the shape of each argument; `()` for arguments that are not tensors.
    """
    formula = _FORMULAS.get(name)
    if formula is None:
        return 0
    try:
        return formula(inputs)
    except (IndexError, ValueError):  # the shapes do not fit the operator
        return 0


def _mm(inputs: Shapes) -> int:
    m, k = inputs[0]
    _k, n = inputs[1]
    return 2 * m * k * n


def _bmm(inputs: Shapes) -> int:
    (b, m, k) = inputs[0]
    (_b, _k, n) = inputs[1]
    return 2 * b * m * k * n


def _attention(inputs: Shapes) -> int:
    b, h, queries, k = inputs[0]
    _b, _h, keys, _k = inputs[1]
    _bv, _hv, _keys, v = inputs[2]
    return 2 * b * h * queries * keys * (k + v)


def _attention_backward(inputs: Shapes) -> int:
    b, h, queries, k = inputs[1]
    _b, _h, keys, _k = inputs[2]
    _bv, _hv, _keys, v = inputs[3]
    # Scores again, and the gradients of scores, values, queries and keys.
    return 2 * b * h * queries * keys * (3 * k + 2 * v)


def _heads_first(inputs: Shapes) -> list[Sequence[int]]:
    """Shapes [batch, sequence, heads, size] as [batch, heads, sequence, size]; other arguments stay."""
    return [(shape[0], shape[2], shape[1], shape[3]) if len(shape) == 4 else shape for shape in inputs]


_FORMULAS: Final[Mapping[str, Callable[[Shapes], int]]] = {
    "mm": _mm,
    "bmm": _bmm,
    "addmm": lambda inputs: _mm(inputs[1:]),
    "baddbmm": lambda inputs: _bmm(inputs[1:]),
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_cudnn_attention": _attention,
    # The operators that these call: a trace has the kernels of attention below them.
    "_flash_attention_forward": lambda inputs: _attention(_heads_first(inputs)),
    "_efficient_attention_forward": lambda inputs: _attention(_heads_first(inputs)),
    "_flash_attention_backward": lambda inputs: _attention_backward(_heads_first(inputs)),
    "_efficient_attention_backward": lambda inputs: _attention_backward(_heads_first(inputs)),
    "_scaled_dot_product_flash_attention_backward": _attention_backward,
    "_scaled_dot_product_efficient_attention_backward": _attention_backward,
    "_scaled_dot_product_cudnn_attention_backward": _attention_backward,
}
