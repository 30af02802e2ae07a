"""Rules of linear algebra, sparse tensors, torchvision and FSDP.

What cuSOLVER and MAGMA do inside is in no source to be read: it stays "may be more". Of sparse tensors those with
coordinates (COO) are judged as far as `SPARSE_JUDGED` says, compressed ones where they become dense. Torchvision's
paths are below its repository; other versions than those read may differ.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from steptrace.predict.rule import Call, Rule, cannot_tell, never, once, times
from steptrace.predict.tensor import unwrap

_CHECKS = "native/BatchLinearAlgebra.cpp: _linalg_check_errors reads infos.any()"
_SOLVERS = "native/cuda/linalg/BatchLinearAlgebra.cpp"
_INSIDE = "its CUDA libraries' own waits are not known"
_FAILED = "the host reads whether the factorisation failed"


def _checked(call: Call) -> int:
    return int(bool(call["check_errors"]))


LINALG: tuple[Rule, ...] = (
    Rule("_linalg_check_errors", "d2h_copy", once, _CHECKS, _FAILED),
    *(
        Rule(op, "d2h_copy", _checked, _CHECKS, "asked to check")
        for op in (
            "linalg_cholesky_ex", "linalg_inv_ex", "_linalg_solve_ex", "linalg_lu_factor_ex", "linalg_ldl_factor_ex",
        )
    ),
    Rule("_linalg_eigh", "d2h_copy", once, _CHECKS, _FAILED),
    Rule("_linalg_svd", "d2h_copy", times(2), _SOLVERS, "copies the convergence to the host, and reads the check"),
    Rule("linalg_pinv", "d2h_copy", times(2), _SOLVERS, "copies its SVD's convergence to the host, reads the check"),
    Rule("linalg_eig", "d2h_copy", times(3), _SOLVERS, "reads whether all is finite, copies infos, checks"),
    Rule("_linalg_eigvals", "d2h_copy", times(3), _SOLVERS, "reads whether all is finite, copies infos, checks"),
    Rule("linalg_lstsq", "d2h_copy", once, _CHECKS, _FAILED),
    *(
        Rule(op, "stream", cannot_tell, _SOLVERS, _INSIDE)
        for op in (
            "_linalg_eigh", "_linalg_svd", "linalg_pinv", "linalg_eig", "_linalg_eigvals", "linalg_lstsq", "linalg_qr",
        )
    ),
    Rule("linalg_matrix_exp", "d2h_copy", once, "native/LinearAlgebra.cpp", "copies the norms to the host"),
    Rule("linalg_matrix_exp", "h2d_copy", once, "native/LinearAlgebra.cpp", "copies a degree's indices to the device"),
    Rule("linalg_matrix_exp", "h2d_copy", cannot_tell, "native/LinearAlgebra.cpp", "more per degree, by the norms"),
)  # fmt: skip


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


_CUDA = "torchvision/csrc/ops/cuda"


def _boxes(call: Call) -> int:
    return int(call["dets"].numel() > 0)


TORCHVISION: tuple[Rule, ...] = (
    Rule(
        "torchvision::nms", "d2h_copy", _boxes, f"{_CUDA}/nms_kernel.cu", "the host must know how many boxes are kept"
    ),
    *(
        Rule(f"torchvision::{op}", "d2h_copy", never, _CUDA, "kernels only")
        for name in ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")
        for op in (name, f"_{name}_backward")
    ),
)


#: Operators of FSDP's own; its collectives are c10d's.
FSDP: tuple[Rule, ...] = tuple(
    Rule(f"fsdp::{op}", "h2d_copy", never, "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", "kernels only")
    for op in ("all_gather_copy_in", "split_with_sizes_copy", "chunk_cat", "copy_")
)
