"""Launches of operators on sparse tensors by coordinates (COO), counted on PyTorch 2.13's CUDA code.

Such a tensor stands in a call as three: itself, its indices and its values.
"""

from collections.abc import Callable, Mapping
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
    count = _LAUNCHES.get(name)
    return None if count is None else count(len(call.inputs) // _PARTS, bool(is_coalesced))


def coalescing(call: OperatorCalls) -> int:
    """Launches of coalescing a tensor; indices of several dimensions are flattened, and restored afterwards."""
    dimensions = call.inputs[1].shape[0]
    return 8 if dimensions == 1 else 9 + 3 * dimensions


def _cat(tensors: int, _is_coalesced: bool) -> int:  # noqa: FBT001
    """Indices and values are joined, and the indices of each tensor but the first are shifted."""
    return 2 + tensors - 1


#: By operator, the launches for a number of tensors, and for whether all of them are coalesced.
_LAUNCHES: Final[Mapping[str, Callable[[int, bool], int]]] = {
    "cat": _cat,
    "stack": lambda tensors, is_coalesced: 2 * tensors + _cat(tensors, is_coalesced),  # each gets a dimension first
    "unsqueeze": lambda _tensors, _is_coalesced: 2,
    "neg": lambda _tensors, _is_coalesced: 3,
    "index_select": lambda _tensors, is_coalesced: 15 if is_coalesced else 20,  # unsorted entries are sorted first
}
