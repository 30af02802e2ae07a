"""Rules of sparse tensors: those with coordinates (COO) as far as `SPARSE_JUDGED` says, no compressed ones."""

from collections.abc import Callable

import torch
from torch import Tensor

from steptrace.predict.rule import Call, Rule, times
from steptrace.predict.tensor import unwrap

_COALESCE = "native/sparse/cuda/SparseCUDATensor.cu: _coalesce_sparse_cuda"
_CONVERSIONS = "native/TensorConversions.cpp"
_WAITS = "Thrust waits for sorting and joining indices, and a count is copied to the host"

#: Operators that may be given COO tensors, and of which the rows below, or none, say all.
SPARSE_JUDGED = frozenset({
    "_coalesce", "_coalesced_", "indices", "values", "_indices", "_values", "_nnz", "is_coalesced", "_to_dense",
    "sparse_mask", "clone", "detach", "sum", "add", "add_", "mul", "mul_", "div_", "zero_",
    "mm", "addmm", "_sparse_mm", "_sparse_addmm", "_sparse_coo_tensor_with_dims_and_tensors",
})  # fmt: skip


def _joins(value: object) -> int:
    """The waits of joining a tensor's indices, 0 if it is no COO tensor that needs it."""
    inner = unwrap(value)
    if not isinstance(inner, Tensor) or inner.layout != torch.sparse_coo:
        return 0
    return 0 if inner.is_coalesced() or inner._nnz() < 2 else 5


def _coalesces(argument: str) -> Callable[[Call], int]:
    return lambda call: _joins(call[argument])


def _dense_to_coo(call: Call) -> int:
    return int(unwrap(call["self"]).layout == torch.strided)


def _of_fewer_dims(call: Call) -> int:
    return 3 if call["sparse_dim"] is not None and call["sparse_dim"] < call["self"].dim() else 0


SPARSE: tuple[Rule, ...] = (
    *(
        Rule(op, "stream", _coalesces(argument), _COALESCE, _WAITS)
        for op, argument in (
            ("_coalesce", "self"), ("mm", "self"), ("_sparse_mm", "sparse"),
            ("addmm", "mat1"), ("_sparse_addmm", "mat1"),
        )
    ),
    Rule("_to_sparse", "d2h_copy", _dense_to_coo, _CONVERSIONS, "nonzero(), whose size the host must know"),
    Rule("_to_sparse", "stream", _of_fewer_dims, _CONVERSIONS, "Thrust waits for the indices that occur"),
    *(
        Rule(op, "d2h_copy", times(2), _CONVERSIONS, "nonzero() twice, whose sizes the host must know")
        for op in ("_to_sparse_csr", "_to_sparse_csc")
    ),
)  # fmt: skip
