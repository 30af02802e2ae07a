"""An operator as a trace records it, as one that can be estimated: types, sizes and strides of its inputs, and FLOP.

A trace has no outputs. What they are follows from the inputs for products, softmax and normalisation, and for operators
that go over elements; of others, such as convolutions, no time can be given.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from steptrace.documents.estimate import OperatorCalls, TensorSpec
from steptrace.estimate.rules import ATTENTION, ELEMENTWISE, FORMATS, ONE_BLOCK, OPERATORS, REDUCTION, STRIDED, kind_of

_TYPES: Final = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "long int": "int64",
    "int": "int32", "short int": "int16", "signed char": "int8", "unsigned char": "uint8", "bool": "bool",
}  # fmt: skip
#: Classes whose result has the shape of what they read first.
_NORMS: Final = ("batch norm", "group norm", "layer norm", "softmax", "log softmax")
_LIST: Final = msgspec.json.Decoder(list[str | list[str]])
_SIZES: Final = msgspec.json.Decoder(list[list[int]])


def recorded_call(name: str, types: str, sizes: str, strides: str) -> OperatorCalls | None:
    """One call of an operator; None where a trace's record does not say what it reads and writes.

    Args:
        name: `aten::mm`.
        types: the JSON list `Input type` of the trace, one of each argument.
        sizes: `Input Dims`, a list of integers of each argument.
        strides: `Input Strides`; tensors are taken as dense without it.
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
    made = _output(base, inputs)
    if made is None:
        return None
    return OperatorCalls(
        name=f"aten.{base}.default",
        inputs=inputs,
        outputs=made,
        is_view=False,
        flop=flop(base, of_sizes),
        calls=1,
        phase="other",
        file=None,
        line=None,
    )


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor without gaps."""
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))


def _output(name: str, inputs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...] | None:
    """What the operator returns; empty where it is too small to matter."""
    # A loss's gradient is a number, and comes first in its backward pass.
    first = next((one for one in inputs if one.shape), None)
    if first is None:
        return None
    if name in ("mm", "bmm"):
        return (_made((*first.shape[:-1], inputs[1].shape[-1]), first),)
    if name in ("addmm", "baddbmm"):
        return (_made((*inputs[1].shape[:-1], inputs[2].shape[-1]), first),)
    if name in OPERATORS["product"]["names"] or name in OPERATORS["convolution"]["names"]:
        return None
    call = OperatorCalls(
        name=f"aten.{name}.default", inputs=inputs, outputs=(first,), is_view=False, flop=0, calls=1, phase="other",
        file=None, line=None,
    )  # fmt: skip
    kind = kind_of(call, FORMATS.get(first.dtype, "32"))
    if kind.startswith(ATTENTION):
        return (first,) if flop(name, [one.shape for one in inputs]) else None
    if kind.startswith(_NORMS):
        return (first,)
    if kind in (REDUCTION, ONE_BLOCK, "pooling", "pooling backward"):
        # The gradient of what was reduced is as large as that, which is the argument behind the result's gradient.
        return (_made(inputs[1].shape, inputs[1]),) if name.endswith("_backward") and len(inputs) > 1 else ()
    if kind not in (ELEMENTWISE, STRIDED):
        return None
    largest = max((one for one in inputs), key=lambda one: math.prod(one.shape))
    return (_made(largest.shape, largest),)


def _made(shape: tuple[int, ...], like: TensorSpec) -> TensorSpec:
    return TensorSpec(shape=shape, strides=dense(shape), dtype=like.dtype)


Shapes = Sequence[Sequence[int]]


def flop(name: str, inputs: Shapes, output: Sequence[int] | None = None) -> int:
    """FLOP of one call; 0 without a formula.

    Args:
        name: `mm` as in `aten::mm` and `aten.mm.default`.
        inputs: the shape of each argument, `()` of what is no tensor.
        output: the output's shape, which convolutions need.
    """
    formula = _FORMULAS.get(name)
    if formula is None:
        return 0
    try:
        return formula(inputs, output)
    except (IndexError, ValueError):  # a list of shapes of another form than the operator's
        return 0


def _mm(inputs: Shapes, _: Sequence[int] | None) -> int:
    (m, k), (_k, n) = inputs[0], inputs[1]
    return 2 * m * k * n


def _bmm(inputs: Shapes, _: Sequence[int] | None) -> int:
    (b, m, k), (_b, _k, n) = inputs[0], inputs[1]
    return 2 * b * m * k * n


def _attention(inputs: Shapes, _: Sequence[int] | None) -> int:
    (b, h, queries, k), (_b, _h, keys, _k), (_bv, _hv, _keys, v) = inputs[0], inputs[1], inputs[2]
    return 2 * b * h * queries * keys * (k + v)


def _attention_backward(inputs: Shapes, _: Sequence[int] | None) -> int:
    (b, h, queries, k), (_b, _h, keys, _k), (_bv, _hv, _keys, v) = inputs[1], inputs[2], inputs[3]
    # Scores again, and the gradients of scores, values, queries and keys.
    return 2 * b * h * queries * keys * (3 * k + 2 * v)


def _convolution(inputs: Shapes, output: Sequence[int] | None) -> int:
    if output is None:
        return 0
    weight = inputs[1]
    return 2 * inputs[0][0] * math.prod(output[2:]) * math.prod(weight)


_FORMULAS: Final[Mapping[str, Callable[[Shapes, Sequence[int] | None], int]]] = {
    "mm": _mm,
    "bmm": _bmm,
    "addmm": lambda inputs, output: _mm(inputs[1:], output),
    "baddbmm": lambda inputs, output: _bmm(inputs[1:], output),
    "convolution": _convolution,
    "_convolution": _convolution,
    "cudnn_convolution": _convolution,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_cudnn_attention": _attention,
    "_scaled_dot_product_flash_attention_backward": _attention_backward,
    "_scaled_dot_product_efficient_attention_backward": _attention_backward,
    "_scaled_dot_product_cudnn_attention_backward": _attention_backward,
}
