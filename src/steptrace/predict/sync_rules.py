"""When an operator on CUDA tensors makes the host wait: one row per operator and kind of wait.

A row says how many syncs one call makes, and which source of PyTorch shows it (paths are below `aten/src/ATen` of its
repository, unless they begin with `torch` or `tools`). PyTorch does not warn of the waits of Thrust; they were counted
in traces of its CUDA build.

An operator of PyTorch without a row counts as one without syncs, unless PyTorch tags its result as depending on the
data. Every other operator without a row is reported as unknown. The tags alone would not do: `index_put_`, `copy_` and
`_to_copy` have none, and `index` has one even where it does not wait.

The waits inside of cuSOLVER and MAGMA were not read, so their syncs are "may be more". Sparse tensors with coordinates
(COO) are judged as far as `SPARSE_JUDGED` says, compressed ones as far as `COMPRESSED_JUDGED` says. Torchvision's paths
are those of its repository. Versions other than the ones that were read may differ.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from steptrace.estimate.coordinate_launches import OF_COALESCED
from steptrace.estimate.launches import isin_sorts
from steptrace.predict.memory import PINNED, is_same_memory
from steptrace.predict.operators import SPARSE_PARTS, Overload
from steptrace.predict.pytorch import overload_name
from steptrace.predict.sync_rule import Call, SyncRule
from steptrace.predict.tensor import is_virtual, unwrap
from steptrace.torch_names import has, release_of

_CHECKS = "native/BatchLinearAlgebra.cpp: _linalg_check_errors reads infos.any()"
_SOLVERS = "native/cuda/linalg/BatchLinearAlgebra.cpp"
_INSIDE = "its CUDA libraries' own waits are not known"
_FAILED = "the host reads whether the factorisation failed"
#: Names of the argument that has the matrices.
_MATRICES = ("A", "self", "LD", "info")


def _is_empty(call: Call) -> bool:
    """Whether there is no matrix: then no solver runs, and nothing is checked."""
    matrices = next((value for name in _MATRICES if isinstance(value := call[name], Tensor)), None)
    return matrices is not None and matrices.numel() == 0


def _checked(call: Call) -> int:
    return int(bool(call["check_errors"]) and not _is_empty(call))


def _if_any(count: int | None) -> Callable[[Call], int | None]:
    return lambda call: 0 if _is_empty(call) else count


def _of_other_shape(call: Call) -> int | None:
    """No wait for a square matrix; how often MAGMA waits for others is not known."""
    rows, columns = call["A"].shape[-2:]
    return 0 if rows == columns or _is_empty(call) else None


def _of_inverse(call: Call) -> int:
    """The waits of the decomposition in `pinv`: `eigh` of a matrix that is said to be Hermitian, else its SVD."""
    return 0 if _is_empty(call) else 1 if call["hermitian"] else 2


_LINALG: tuple[SyncRule, ...] = (
    SyncRule("_linalg_check_errors", "d2h_copy", 1, _CHECKS, _FAILED),
    *(
        SyncRule(op, "d2h_copy", _checked, _CHECKS, "asked to check")
        for op in (
            "linalg_cholesky_ex", "linalg_inv_ex", "_linalg_solve_ex", "linalg_lu_factor_ex", "linalg_ldl_factor_ex",
        )
    ),
    SyncRule("cholesky", "d2h_copy", _if_any(1), _CHECKS, _FAILED),
    SyncRule("_linalg_eigh", "d2h_copy", _if_any(1), _CHECKS, _FAILED),
    SyncRule(
        "_linalg_svd", "d2h_copy", _if_any(2), _SOLVERS, "copies the convergence to the host, and reads the check"
    ),
    SyncRule("linalg_pinv", "d2h_copy", _of_inverse, _SOLVERS, "reads whether its decomposition converged"),
    SyncRule("linalg_eig", "d2h_copy", _if_any(3), _SOLVERS, "reads whether all is finite, copies infos, checks"),
    SyncRule("_linalg_eigvals", "d2h_copy", _if_any(2), _SOLVERS, "reads whether all is finite, and the check"),
    *(
        SyncRule(op, "stream", _of_other_shape, _SOLVERS, "MAGMA factorises a matrix that is not square, and waits")
        for op in ("linalg_lu_factor_ex", "linalg_lu")
    ),
    SyncRule("linalg_lstsq", "d2h_copy", _if_any(1), _CHECKS, _FAILED),
    SyncRule("linalg_ldl_solve", "device", _if_any(1), _SOLVERS, "it waits for the device before cuSOLVER solves"),
    *(
        SyncRule(op, "stream", _if_any(None), _SOLVERS, _INSIDE)
        for op in (
            "_linalg_eigh", "_linalg_svd", "linalg_pinv", "linalg_eig", "_linalg_eigvals", "linalg_lstsq", "linalg_qr",
        )
    ),
    SyncRule("linalg_matrix_exp", "d2h_copy", 1, "native/LinearAlgebra.cpp", "copies the norms to the host"),
    SyncRule("linalg_matrix_exp", "h2d_copy", 1, "native/LinearAlgebra.cpp", "copies a degree's indices to the device"),
    SyncRule("linalg_matrix_exp", "h2d_copy", None, "native/LinearAlgebra.cpp", "more per degree, by the norms"),
)  # fmt: skip


_COALESCE = "native/sparse/cuda/SparseCUDATensor.cu: _coalesce_sparse_cuda"
_CONVERSIONS = "native/TensorConversions.cpp"
_PERMUTE = "native/TensorShape.cpp: permute_sparse_coo"
_SELECT = "native/sparse/cuda/SparseCUDATensor.cu: index_select_sparse_cuda"
_PRODUCT = "native/sparse/cuda/SparseMatMul.cu"
_SOFTMAX = "native/sparse/cuda/SoftMax.cu"
_INDICES = "Thrust waits for the indices of the product"
_ENTRIES = "the host must know how many entries are left"
_POOLS = "Thrust waits for the groups of indices"
_RANGE = "the conversion copies a range of the host"
_COO = (torch.sparse_coo,)
_WAITS = "Thrust waits for sorting and joining indices, and a count is copied to the host"

#: Operators whose rows below (or their absence) also hold for COO tensors.
SPARSE_JUDGED = frozenset({
    *OF_COALESCED, "cat", "div", "empty_like", "index_select", "neg", "permute", "stack", "sub", "unsqueeze",
    "zeros_like",
    "_coalesce", "_coalesced_", "indices", "values", "_indices", "_values", "_nnz", "is_coalesced", "_to_dense",
    "sparse_mask", "clone", "detach", "sum", "add", "add_", "mul", "mul_", "div_", "zero_", "t", "transpose",
    "mm", "mv", "addmm", "_sparse_mm", "_sparse_addmm", "_sparse_coo_tensor_with_dims_and_tensors", "sparse_dim",
    "dense_dim", "_to_copy", "_sparse_sparse_matmul", "_sparse_softmax", "_sparse_log_softmax",
    "_sparse_softmax_backward_data", "_sparse_log_softmax_backward_data", "_sparse_sum", "_to_sparse_csr",
    "_to_sparse_csc", "bmm", "hspmm",
})  # fmt: skip
#: The same for compressed ones (CSR, CSC, BSR, BSC).
COMPRESSED_JUDGED = frozenset({
    *OF_COALESCED, "neg", "clone", "detach", "_to_copy", "mul", "t", "transpose", "_to_dense", "_to_sparse", "_nnz",
    "values", "crow_indices", "col_indices", "ccol_indices", "row_indices", "sum", "mm", "mv", "addmm", "addmv",
    "sparse_sampled_addmm", "_sparse_addmm", "_sparse_csr_sum", "linear", "zeros_like", "empty_like",
    "_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "select",
})  # fmt: skip


#: Operators that make the host wait for nothing else if a tensor is nested: they work on its memory, part by part or as
#: a whole, and copy its sizes to the device without blocking.
NESTED_JUDGED = frozenset({
    "detach", "alias", "clone", "_to_copy", "copy_", "zero_", "fill_", "add", "add_", "sub", "mul", "mul_", "div",
    "neg", "relu", "relu_", "gelu", "gelu_backward", "silu", "silu_backward", "tanh", "sigmoid", "threshold_backward",
    "native_dropout", "native_dropout_backward", "linear", "linear_backward", "native_layer_norm",
    "native_layer_norm_backward", "_softmax", "_softmax_backward_data", "matmul", "matmul_backward", "bmm",
    "transpose", "view", "reshape", "_reshape_alias", "unbind", "select", "chunk", "split", "split_with_sizes",
    "to_padded_tensor", "_nested_from_padded", "_nested_tensor_from_tensor_list", "_nested_tensor_size",
    "_nested_tensor_strides", "_nested_tensor_storage_offsets", "_nested_view_from_buffer", "_nested_select_backward",
    "values", "ones_like", "zeros_like", "empty_like", "logical_not", "masked_fill",
    "_nested_tensor_from_mask_left_aligned", "_nested_tensor_from_mask",
})  # fmt: skip


def _entries(tensor: Tensor) -> int:
    """The entries of a COO tensor, whether coalesced or not; enough to wait for where PyTorch does not say."""
    return tensor._nnz() if has("torch.Tensor._nnz") else 2


def _joins(value: object) -> int:
    """The waits of joining a tensor's indices, 0 if it is no COO tensor that needs it."""
    inner = unwrap(value)
    if not isinstance(inner, Tensor) or inner.layout != torch.sparse_coo:
        return 0
    return 0 if inner.is_coalesced() or _entries(inner) < 2 else 5


def _coalesces(argument: str) -> Callable[[Call], int]:
    return lambda call: _joins(call[argument])


def _joins_both(first: str, second: str) -> Callable[[Call], int]:
    return lambda call: _joins(call[first]) + _joins(call[second])


def _softmax_waits(pools: int, alike: int) -> Callable[[Call], int]:
    """The waits of a softmax of a COO tensor: along a dimension that has indices, and along one of its dense ones."""

    def waits(call: Call) -> int:
        inner = unwrap(call["self"])
        joins = sum(_joins(call[name]) for name in ("self", "grad_output", "output"))
        return joins + (pools if call["dim"] % inner.dim() < inner.sparse_dim() else alike)

    return waits


def _sums_entries(call: Call) -> int:
    """A sum over some of the dimensions that have indices: the indices that are left are joined."""
    inner = unwrap(call["self"])
    sparse = set(range(inner.sparse_dim()))
    dims = {dim % inner.dim() for dim in call["dim"] or ()} & sparse
    return 5 if dims and dims != sparse and _entries(inner) > 1 else 0


def _both(layouts: Sequence[torch.layout], *names: str) -> Callable[[Call], int | None]:
    """None where all these arguments have one of the layouts, else 0."""
    return lambda call: None if all(unwrap(call[name]).layout in layouts for name in names) else 0


_BY_ROWS = (torch.sparse_csr, torch.sparse_bsr)
_BY_COLUMNS = (torch.sparse_csc, torch.sparse_bsc)


def _turned(name: str) -> Callable[[Call], int]:
    """The copy of making a tensor that is compressed by columns one that is compressed by rows."""
    return lambda call: int(unwrap(call[name]).layout in _BY_COLUMNS)


def _converts(to: Sequence[torch.layout]) -> Callable[[Call], int]:
    """Copies to the device of a conversion between compressed layouts."""

    def copies(call: Call) -> int:
        layout = unwrap(call["self"]).layout
        return int(layout in (*_BY_ROWS, *_BY_COLUMNS) and layout not in to)

    return copies


def _blocks_rows(call: Call) -> int:
    """A conversion to blocks is made on the host."""
    return int(unwrap(call["self"]).layout is torch.sparse_csr)


def _of_compressed(call: Call) -> int:
    return int(unwrap(call["self"]).layout in (*_BY_ROWS, *_BY_COLUMNS))


def _is_coo(call: Call) -> int:
    return int(unwrap(call["self"]).layout is torch.sparse_coo)


def _dense_to_coo(call: Call) -> int:
    return int(unwrap(call["self"]).layout == torch.strided)


def _dense_to_rows(call: Call) -> int:
    return 2 * _dense_to_coo(call)


def _of_fewer_dims(call: Call) -> int:
    return 3 if call["sparse_dim"] is not None and call["sparse_dim"] < call["self"].dim() else 0


def _reorders_indices(call: Call) -> int:
    """`permute` of a COO tensor: the order of its sparse dimensions is copied to the device, unless it stays."""
    inner = unwrap(call["self"])
    if inner.layout != torch.sparse_coo:
        return 0
    dims = [dim % inner.dim() for dim in call["dims"]][: inner.sparse_dim()]
    return int(dims != list(range(len(dims))))


def _selects_entries(call: Call) -> int:
    inner = unwrap(call["self"])
    return int(inner.layout == torch.sparse_coo and call["dim"] % inner.dim() < inner.sparse_dim())


_SPARSE: tuple[SyncRule, ...] = (
    *(SyncRule(op, "stream", _coalesces("self"), _COALESCE, _WAITS) for op in OF_COALESCED),
    SyncRule("permute", "h2d_copy", _reorders_indices, _PERMUTE, "the order of the dimensions is copied to the device"),
    SyncRule("index_select", "d2h_copy", _selects_entries, _SELECT, "the host must know how many entries are selected"),
    *(
        SyncRule(op, "stream", _coalesces(argument), _COALESCE, _WAITS)
        for op, argument in (
            ("_coalesce", "self"), ("mv", "self"), ("addmm", "mat1"), ("_sparse_addmm", "mat1"), ("bmm", "self"),
            ("hspmm", "mat1"), ("_to_sparse_csr", "self"), ("_to_sparse_csc", "self"),
        )
    ),
    *(
        SyncRule(op, kind, count, source, reason)
        for op, first, second in (
            ("mm", "self", "mat2"), ("_sparse_sparse_matmul", "self", "other"),
        )
        for kind, count, source, reason in (
            ("stream", _joins_both(first, second), _COALESCE, _WAITS),
            ("stream", lambda call, names=(first, second): 2 * (_both(_COO, *names)(call) is None), _PRODUCT, _INDICES),
            ("stream", _both((*_COO, *_BY_ROWS, *_BY_COLUMNS), first, second), _PRODUCT, _INSIDE),
        )
    ),
    *(
        SyncRule(op, "h2d_copy", _turned(argument), _CONVERSIONS, _RANGE)
        for op, argument in (("mm", "self"), ("addmm", "mat1"), ("_sparse_addmm", "mat1"), ("mv", "self"))
    ),
    *(
        SyncRule(op, "stream", _both((*_BY_ROWS, *_BY_COLUMNS), "mat1", "mat2"), _PRODUCT, _INSIDE)
        for op in ("addmm", "_sparse_addmm")
    ),
    SyncRule("sum.dim_IntList", "d2h_copy", _of_compressed, "native/sparse/SparseCsrTensorMath.cpp", _ENTRIES),
    SyncRule("_to_sparse_csr", "h2d_copy", _converts(_BY_ROWS), _CONVERSIONS, _RANGE),
    SyncRule("_to_sparse_csc", "h2d_copy", _converts(_BY_COLUMNS), _CONVERSIONS, _RANGE),
    SyncRule("_to_sparse_bsr", "d2h_copy", _blocks_rows, _CONVERSIONS, "blocks are made on the host"),
    SyncRule("_to_sparse_bsr", "h2d_copy", _blocks_rows, _CONVERSIONS, "blocks are made on the host"),
    SyncRule("select", "d2h_copy", _of_compressed, "native/sparse/SparseCsrTensor.cpp", "reads where the row begins"),
    SyncRule("_sparse_csr_sum", "d2h_copy", 1, "native/sparse/SparseCsrTensorMath.cpp", _ENTRIES),
    SyncRule("bmm", "device", _is_coo, "native/sparse/cuda/SparseCUDATensorMath.cu", "it waits for the device"),
    SyncRule("hspmm", "stream", 1, "native/sparse/cuda/SparseCUDATensorMath.cu", "Thrust waits for joining indices"),
    *(
        SyncRule(f"_sparse_{kind}{end}", "stream", _softmax_waits(pools, alike), _SOFTMAX, _POOLS)
        for kind in ("softmax", "log_softmax")
        for end, pools, alike in (("", 7, 0), ("_backward_data", 9, 3))
    ),
    SyncRule("_sparse_sum", "stream", _sums_entries, "native/sparse/SparseTensorMath.cpp", _WAITS),
    SyncRule("_to_sparse", "d2h_copy", _dense_to_coo, _CONVERSIONS, "nonzero(), whose size the host must know"),
    SyncRule("_to_sparse", "stream", _of_fewer_dims, _CONVERSIONS, "Thrust waits for the indices that occur"),
    *(
        SyncRule(op, "d2h_copy", _dense_to_rows, _CONVERSIONS, "nonzero() twice, whose sizes the host must know")
        for op in ("_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc")
    ),
)  # fmt: skip


_CUDA = "torchvision/csrc/ops/cuda"


def _boxes(call: Call) -> int:
    return int(call["dets"].numel() > 0)


_TORCHVISION: tuple[SyncRule, ...] = (
    SyncRule(
        "torchvision::nms", "d2h_copy", _boxes, f"{_CUDA}/nms_kernel.cu", "the host must know how many boxes are kept"
    ),
    *(
        SyncRule(f"torchvision::{op}", "d2h_copy", 0, _CUDA, "kernels only")
        for name in ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")
        for op in (name, f"_{name}_backward")
    ),
)


#: Operators of FSDP's own; its collectives are c10d's.
_FSDP: tuple[SyncRule, ...] = tuple(
    SyncRule(f"fsdp::{op}", "h2d_copy", 0, "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", "kernels only")
    for op in ("all_gather_copy_in", "split_with_sizes_copy", "chunk_cat", "copy_")
)


def _is_mask(index: object) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def _present(indices: Sequence[Tensor | None]) -> list[Tensor]:
    return [index for index in indices if index is not None]


def _device_masks(call: Call) -> int:
    """Boolean indices on the device: each becomes a nonzero."""
    return sum(_is_mask(index) and is_virtual(index) for index in _present(call["indices"]))


def _host_indices(call: Call) -> int:
    """Integer indices on the CPU: each is copied to the device. (A CPU mask is copied from pinned memory: no wait.)"""
    return sum(not _is_mask(index) and not is_virtual(index) for index in _present(call["indices"]))


def _becomes_masked_fill(call: Call) -> bool:
    """Whether `x[mask] = value` turns into masked_fill_: one device mask, and a single value held by the CPU."""
    indices = _present(call["indices"])
    single = not call["accumulate"] and call.on_host("values") and call["values"].numel() == 1
    return bool(single and len(indices) == 1 and _is_mask(indices[0]) and is_virtual(indices[0]))


def _assignment_masks(call: Call) -> int:
    return 0 if _becomes_masked_fill(call) else _device_masks(call)


def _assignment_copies(call: Call) -> int:
    return 0 if _becomes_masked_fill(call) else _host_indices(call) + call.on_host("values")


def _parts(tensor: Tensor) -> int:
    """How many tensors are copied where one is: a sparse one consists of several."""
    return len(SPARSE_PARTS.get(tensor.layout, ())) or 1


def _to_host(call: Call) -> int:
    """`_to_copy` off the device. Its result is pinned if non-blocking, so then the host goes on."""
    leaves = call.on_device("self") and call["device"] is not None and torch.device(call["device"]).type == "cpu"
    return int(leaves and not call["non_blocking"] and call["self"].numel() > 0) * _parts(call["self"])


def _to_device(call: Call) -> int:
    device = call["device"]
    arrives = call.on_host("self") and device is not None and torch.device(device).type != "cpu"
    return int(arrives and not call["non_blocking"] and call["self"].numel() > 0) * _parts(call["self"])


def _copy_to_host(call: Call) -> int:
    """`copy_` into a CPU tensor: a copy into pageable memory waits even with `non_blocking=True`."""
    waits = not call["non_blocking"] or (call.on_host("self") and call["self"] not in PINNED)
    return int(call.on_host("self") and call.on_device("src") and waits and call["src"].numel() > 0)


def _copy_to_device(call: Call) -> int:
    between = call.on_device("self") and call.on_host("src")
    return int(between and not call["non_blocking"] and call["self"].numel() > 0)


def _foreach_crossing(call: Call, *, to_host: bool) -> int:
    if call["non_blocking"]:
        return 0
    pairs = zip(call["self"], call["src"], strict=True)
    return sum(is_virtual(src) is to_host and is_virtual(dst) is not to_host for dst, src in pairs)


def _value_on_device(call: Call) -> int:
    return int(call.on_device("value"))


def _ends_on_device(call: Call) -> int:
    return sum(call.on_device(name) for name in ("start", "end"))


def _host_scalars_of_where(call: Call) -> int:
    return sum(call.on_host(name) for name in ("condition", "self", "other"))


def _bincount(call: Call) -> int:
    if call["self"].numel() == 0:
        return 0
    return 1 if call["self"].dtype == torch.uint8 else 2


def _histc(call: Call) -> int:
    return 2 if call["min"] == call["max"] and call["self"].numel() > 0 else 0


def _isin_sorts(call: Call) -> bool:
    if not (isinstance(call["elements"], Tensor) and isinstance(call["test_elements"], Tensor)):
        return False
    return isin_sorts(call["elements"].numel(), call["test_elements"].numel())


def _isin(call: Call) -> int:
    return 2 if _isin_sorts(call) and not call["assume_unique"] else 0


def _sorter(call: Call) -> int:
    return 2 if isinstance(call["sorter"], Tensor) and call["sorter"].numel() > 0 else 0


def _equal(call: Call) -> int:
    a = call["self"]
    b = call["other"]
    return int(a.shape == b.shape and a.numel() > 0 and not is_same_memory(unwrap(a), unwrap(b)))


def _repeats_without_size(call: Call) -> int:
    return 2 if call["output_size"] is None and call["repeats"].numel() > 0 else 0


def _std_tensor(call: Call) -> int:
    """Checked once when the result is made, and once when it is filled; since PyTorch 2.14 the host does not wait."""
    if not isinstance(call["std"], Tensor) or call["std"].numel() == 0 or release_of(torch.__version__) >= (2, 14):
        return 0
    return 1 if isinstance(call["out"], Tensor) else 2


def _segments(call: Call) -> int:
    return 0 if call["unsafe"] or not isinstance(call["lengths"], Tensor) else 2


def _along_dim(call: Call) -> int:
    """Thrust's waits: it sorts, compares neighbours, and scans and scatters for the inverse."""
    if call["self"].numel() == 0:
        return 0
    return 3 + 3 * bool(call["return_inverse"]) + bool(call["return_counts"])


def _if_not_empty(call: Call) -> int:
    return int(call["self"].numel() > 0)


def _consecutive(call: Call) -> int:
    return _if_not_empty(call) if call["dim"] is None else 0


def _consecutive_along_dim(call: Call) -> int:
    return _along_dim(call) - 1 if call["dim"] is not None and call["self"].numel() > 0 else 0


def _long_slices(call: Call) -> int | None:
    """Slices of up to 2048 elements are sorted in one kernel."""
    shape = call["self"].shape
    return 0 if not shape or shape[call["dim"]] <= 2048 else None


def _half_of_grouped(call: Call) -> int:
    """Offsets are copied to the host unless one kernel takes all groups."""
    return int(call["self"].dtype != torch.bfloat16 and call.on_device("offs"))


def _rows_observed(call: Call) -> int:
    """The host reads whether to quantize, and if so the zero points; of a whole tensor one kernel does all of it."""
    return 1 + 2 * int(unwrap(call["fake_quant_on"])) if call["per_row_fake_quant"] else 0


def _pads_nested(call: Call) -> int:
    """One kernel pads parts of up to three dimensions; other ones are padded part by part."""
    inner = unwrap(call["self"])
    in_one = inner.dim() <= 4 and inner.dtype in (torch.float32, torch.float64, torch.float16)
    return int(inner.is_nested and in_one)


def _goes_on_nested(_: Call) -> int | None:
    """An encoder that computes no gradients packs its batch into a nested tensor, which is not followed."""
    return 0 if torch.is_grad_enabled() or torch.is_autocast_enabled() else None


_INDEXING = "native/TensorAdvancedIndexing.cpp, native/IndexingUtils.h"
_COPY = "native/cuda/Copy.cu, native/TensorConversions.cpp"
_THRUST = "native/cuda/Unique.cu: unique_dim_cuda_template"
_UNIQUE = "native/cuda/UniqueCub.cu: num_out.item()"
_NESTED = "native/nested/NestedTensorMath.cpp"
_PADS = "native/nested/cuda/NestedTensorTransformerFunctions.cpp"
_QUANTIZED = "native/quantized: cuda/FusedObsFakeQuant.cu, FakeQuantPerTensorAffine.cpp, FakeQuantPerChannelAffine.cpp"
_ZERO_POINTS = "the host reads whether zero points are in range"
_PACKS = "nn.TransformerEncoder then packs the batch by its padding mask, and reads the lengths on the host"
_MASK = "a boolean index becomes nonzero(), whose size the host must know"
_INDEX_COPY = "an integer index or a value on the CPU is copied to the device"

RULES: tuple[SyncRule, ...] = (
    # Reading values
    SyncRule("_local_scalar_dense", "d2h_copy", 1, "native/cuda/CUDAScalar.cu", "the host reads one value"),
    SyncRule("equal", "d2h_copy", _equal, "native/cuda/Equal.cpp", "the host reads whether all are equal"),
    SyncRule("allclose", "d2h_copy", 1, "native/TensorCompare.cpp", "the host reads whether all are close"),
    # Sizes that depend on the data
    SyncRule("nonzero", "d2h_copy", 1, "native/cuda/Nonzero.cu", "the host must know how many there are"),
    SyncRule("masked_select", "d2h_copy", 1, "native/cuda/IndexKernel.cpp", _MASK),
    SyncRule("masked_scatter_backward", "d2h_copy", 1, "tools/autograd/derivatives.yaml", "masked_select of grad"),
    SyncRule("_unique", "d2h_copy", _if_not_empty, _UNIQUE, "the host must know how many there are"),
    SyncRule("_unique2", "d2h_copy", _if_not_empty, _UNIQUE, "the host must know how many there are"),
    SyncRule("unique_consecutive", "d2h_copy", _consecutive, _UNIQUE, "the host must know how many there are"),
    SyncRule("unique_consecutive", "stream", _consecutive_along_dim, _THRUST, "Thrust waits for what it was asked"),
    SyncRule("unique_dim", "stream", _along_dim, _THRUST, "Thrust waits for what it was asked"),
    SyncRule("repeat_interleave.Tensor", "d2h_copy", _repeats_without_size, "native/Repeat.h", "reads total and sign"),
    SyncRule(
        "bincount", "d2h_copy", _bincount, "native/cuda/SummaryOps.cu", "reads the largest value, and the smallest"
    ),
    SyncRule("histc", "d2h_copy", _histc, "native/cuda/SummaryOps.cu", "reads both bounds where none are given"),
    SyncRule("isin", "d2h_copy", _isin, "native/TensorCompare.cpp: isin_sorting", "unique of both arguments"),
    SyncRule("isin", "h2d_copy", _isin_sorts, "native/TensorCompare.cpp: isin_sorting", "a number is put last"),
    # Checks of arguments
    SyncRule("searchsorted", "d2h_copy", _sorter, "native/BucketizationUtils.h", "reads the sorter's bounds"),
    SyncRule("normal", "d2h_copy", _std_tensor, "native/DistributionTemplates.h", "checks that std is not negative"),
    SyncRule("to_padded_tensor", "h2d_copy", _pads_nested, _PADS, "offsets and sizes are copied to the device"),
    SyncRule("_nested_tensor_from_mask_left_aligned", "d2h_copy", 1, _NESTED, "checks that padding stands at the end"),
    SyncRule("_nested_tensor_from_mask_left_aligned", "d2h_copy", _goes_on_nested, _NESTED, _PACKS),
    # Quantization as training learns it
    SyncRule("fake_quantize_per_channel_affine_cachemask", "d2h_copy", 2, _QUANTIZED, _ZERO_POINTS),
    SyncRule("_fused_moving_avg_obs_fq_helper", "d2h_copy", _rows_observed, _QUANTIZED, _ZERO_POINTS),
    *(
        SyncRule(f"_fake_quantize_learnable_per_{part}_affine{backward}", "d2h_copy", 2, _QUANTIZED, reason)
        for part, reason in (("tensor", "reads scale and zero point"), ("channel", _ZERO_POINTS))
        for backward in ("", "_backward")
    ),
    # Indexing
    *(
        SyncRule(op, kind, count, _INDEXING, reason)
        for ops, masks, copies in (
            (("index", "_unsafe_index"), _device_masks, _host_indices),
            (
                ("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"),
                _assignment_masks,
                _assignment_copies,
            ),
        )
        for op in ops
        for kind, count, reason in (("d2h_copy", masks, _MASK), ("h2d_copy", copies, _INDEX_COPY))
    ),
    SyncRule("nonzero_static", "d2h_copy", 0, "native/cuda/Nonzero.cu", "the size is given"),
    # Single values given as tensors
    SyncRule("masked_fill.Tensor", "d2h_copy", _value_on_device, "native/cuda/Indexing.cu", "value.item()"),
    SyncRule("masked_fill_.Tensor", "d2h_copy", _value_on_device, "native/cuda/Indexing.cu", "value.item()"),
    SyncRule("index_fill.int_Tensor", "d2h_copy", _value_on_device, _INDEXING, "value.item()"),
    SyncRule("index_fill_.int_Tensor", "d2h_copy", _value_on_device, _INDEXING, "value.item()"),
    *(
        SyncRule(
            f"{op}.{overload}", "d2h_copy", _ends_on_device, "native/TensorFactories.cpp", "start.item(), end.item()"
        )
        for op in ("linspace", "logspace")
        for ends in ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")
        for overload in (ends, f"{ends}_out")
    ),
    SyncRule("quantize_per_tensor.tensor_qparams", "d2h_copy", 2, _QUANTIZED, "reads scale and zero point"),
    SyncRule("quantize_per_channel", "d2h_copy", 2, _QUANTIZED, _ZERO_POINTS),
    SyncRule(
        "where.self", "h2d_copy", _host_scalars_of_where, "native/TensorCompare.cpp", "CPU scalars are copied over"
    ),
    # Copies
    SyncRule("_to_copy", "d2h_copy", _to_host, _COPY, "a blocking copy to the host"),
    SyncRule("_to_copy", "h2d_copy", _to_device, _COPY, "a blocking copy to the device"),
    SyncRule("copy_", "d2h_copy", _copy_to_host, _COPY, "a blocking copy, or one into pageable memory"),
    SyncRule("copy_", "h2d_copy", _copy_to_device, _COPY, "a blocking copy to the device"),
    *(
        SyncRule(op, kind, count, _COPY, "one blocking copy per pair of tensors")
        for op in ("_foreach_copy", "_foreach_copy_")
        for kind, count in (
            ("d2h_copy", lambda call: _foreach_crossing(call, to_host=True)),
            ("h2d_copy", lambda call: _foreach_crossing(call, to_host=False)),
        )
    ),
    # Known to wait, but not how often
    SyncRule(
        "segment_reduce", "d2h_copy", _segments, "native/SegmentReduce.cpp", "reads whether the lengths are valid"
    ),
    SyncRule("mode", "stream", _long_slices, "native/cuda/TensorModeKernel.cu", "Thrust waits on long slices"),
    SyncRule("_ctc_loss", "h2d_copy", 3, "native/cuda/LossCTC.cu", "lengths and offsets are copied over"),
    SyncRule("_ctc_loss_backward", "h2d_copy", 3, "native/cuda/LossCTC.cu", "lengths and offsets are copied over"),
    SyncRule(
        "_grouped_mm", "d2h_copy", _half_of_grouped, "native/cuda/GroupedBlas.cpp", "offsets are copied to the host"
    ),
    SyncRule("_cudnn_ctc_loss", "d2h_copy", None, "native/cudnn/LossCTC.cpp", "copies lengths both ways"),
    *_LINALG,
    *_SPARSE,
    *_TORCHVISION,
    *_FSDP,
)


def _by_operator(rules: Sequence[SyncRule]) -> dict[str, list[SyncRule]]:
    return {op: [rule for rule in rules if rule.op == op] for op in dict.fromkeys(rule.op for rule in rules)}


class SyncRules:
    """The rows by operator: those above and a prediction's own."""

    def __init__(self, extra: Sequence[SyncRule] = ()) -> None:
        """`extra`: rows that replace those above of the same name."""
        self._rows = _by_operator(RULES) | _by_operator(extra)
        self._rows_by_overload: dict[Overload, list[SyncRule] | None] = {}

    def rows_of(self, overload: Overload) -> list[SyncRule] | None:
        """The rows of an operator, by its overload or its name; None if the table has none for it."""
        if overload not in self._rows_by_overload:
            name = overload.packet if overload.namespace == "aten" else overload.name
            by_overload = self._rows.get(f"{name}.{overload_name(overload.func)}")
            self._rows_by_overload[overload] = by_overload or self._rows.get(name)
        return self._rows_by_overload[overload]
