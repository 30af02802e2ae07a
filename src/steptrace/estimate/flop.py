"""FLOP of operators from the shapes of their inputs, by the formulas of torch.utils.flop_counter, without torch.

For traces, which hold shapes and no FLOP; a prediction asks flop_counter itself.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

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
