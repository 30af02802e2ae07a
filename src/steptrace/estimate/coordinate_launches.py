"""Launches of operators on sparse tensors by coordinates (COO), counted on PyTorch 2.13's CUDA code.

Such a tensor stands in a call as three: itself, its indices and its values.
"""

from typing import Final

from steptrace.documents.estimate import OperatorCalls

#: Functions of each value that PyTorch computes on a coalesced tensor, which it first has to make.
OF_COALESCED: Final = (
    "abs", "asin", "asinh", "atan", "atanh", "ceil", "deg2rad", "erf", "erfinv", "expm1", "floor", "frac", "isnan",
    "isneginf", "isposinf", "log1p", "nan_to_num", "pow", "rad2deg", "relu", "round", "sgn", "sign", "signbit", "sin",
    "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
_PARTS: Final = 3


def launches_by_coordinates(call: OperatorCalls, name: str) -> int | None:
    """Launches of a call on tensors by coordinates; None if it has none, or if it launches as on other tensors."""
    is_coalesced = call.arguments.get("is_coalesced")
    if is_coalesced is None:
        return None
    if name in OF_COALESCED:
        return 2 + (0 if is_coalesced else coalescing(call))  # the indices are copied, the values computed
    tensors = len(call.inputs) // _PARTS
    match name:
        case "cat":
            return _joining(tensors)
        case "stack":
            return 2 * tensors + _joining(tensors)  # each tensor gets a dimension first
        case "neg":
            return 3
        case "index_select":
            return 15 if is_coalesced else 20  # entries that are not sorted are sorted first
    return None


def coalescing(call: OperatorCalls) -> int:
    """Launches of coalescing a tensor; indices of several dimensions are flattened, and restored afterwards."""
    dimensions = call.inputs[1].shape[0]
    return 8 if dimensions == 1 else 9 + 3 * dimensions


def _joining(tensors: int) -> int:
    """Launches of joining tensors: indices and values are joined, the indices of all but the first are shifted."""
    return 2 + tensors - 1
