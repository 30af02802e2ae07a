"""When an operator on CUDA tensors makes the host wait: one row per operator and kind of wait.

A row says how many syncs one call makes, and where that is to be read in PyTorch (paths are below `aten/src/ATen` of
its repository unless they begin with `torch` or `tools`). Waits of Thrust, which PyTorch does not warn of, were counted
in traces of its CUDA build.

What is not in the table counts as none if it is one of PyTorch's own operators, and PyTorch does not tag its result as
depending on the data. Everything else without a row is reported as unknown, never as none. Operator tags alone would
not do: `index_put_`, `copy_` and `_to_copy` carry none, and `index` carries one even where it does not wait.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from steptrace.estimate.launches import isin_sorts
from steptrace.predict.marks import PINNED
from steptrace.predict.rule import Call, Rule, cannot_tell, if_not_empty, never, once, times
from steptrace.predict.rules_libraries import FSDP, LINALG, SPARSE, TORCHVISION
from steptrace.predict.tensor import is_virtual


def _is_mask(index: object) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def _given(indices: Sequence[Tensor | None]) -> list[Tensor]:
    return [index for index in indices if index is not None]


def _device_masks(call: Call) -> int:
    """Boolean indices on the device: each becomes a nonzero."""
    return sum(_is_mask(index) and is_virtual(index) for index in _given(call["indices"]))


def _host_indices(call: Call) -> int:
    """Integer indices on the CPU: each is copied to the device. (A CPU mask is copied from pinned memory: no wait.)"""
    return sum(not _is_mask(index) and not is_virtual(index) for index in _given(call["indices"]))


def _becomes_masked_fill(call: Call) -> bool:
    """Whether `x[mask] = value` turns into masked_fill_: one device mask, and a single value held by the CPU."""
    indices = _given(call["indices"])
    single = not call["accumulate"] and call.on_host("values") and call["values"].numel() == 1
    return bool(single and len(indices) == 1 and _is_mask(indices[0]) and is_virtual(indices[0]))


def _assignment_masks(call: Call) -> int:
    return 0 if _becomes_masked_fill(call) or not call.on_device("self") else _device_masks(call)


def _assignment_copies(call: Call) -> int:
    if _becomes_masked_fill(call) or not call.on_device("self"):
        return 0
    return _host_indices(call) + call.on_host("values")


def _index_masks(call: Call) -> int:
    return _device_masks(call) if call.on_device("self") else 0


def _index_copies(call: Call) -> int:
    return _host_indices(call) if call.on_device("self") else 0


def _to_host(call: Call) -> int:
    """`_to_copy` off the device. Its result is pinned if non-blocking, so then the host goes on."""
    leaves = call.on_device("self") and call["device"] is not None and torch.device(call["device"]).type == "cpu"
    return int(leaves and not call["non_blocking"] and call["self"].numel() > 0)


def _to_device(call: Call) -> int:
    device = call["device"]
    arrives = call.on_host("self") and device is not None and torch.device(device).type != "cpu"
    return int(arrives and not call["non_blocking"] and call["self"].numel() > 0)


def _copy_to_host(call: Call) -> int:
    """`copy_` into a CPU tensor: into pageable memory the driver waits even if asked not to block."""
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
    a, b = call["self"], call["other"]
    return int(a is not b and a.shape == b.shape and a.numel() > 0)


def _repeats_without_size(call: Call) -> int:
    return 2 if call["output_size"] is None and call["repeats"].numel() > 0 else 0


def _std_tensor(call: Call) -> int:
    """Checked once when the result is made, and once when it is filled; since PyTorch 2.14 the host does not wait."""
    if not isinstance(call["std"], Tensor) or call["std"].numel() == 0 or torch.__version__ >= "2.14":
        return 0
    return 1 if isinstance(call["out"], Tensor) else 2


def _segments(call: Call) -> int:
    return 0 if call["unsafe"] or not isinstance(call["lengths"], Tensor) else 2


def _along_dim(call: Call) -> int:
    """Thrust's waits: it sorts, compares neighbours, and scans and scatters for the inverse."""
    if call["self"].numel() == 0:
        return 0
    return 3 + 3 * bool(call["return_inverse"]) + bool(call["return_counts"])


def _consecutive(call: Call) -> int:
    return if_not_empty(call) if call["dim"] is None else 0


def _consecutive_along_dim(call: Call) -> int:
    return _along_dim(call) - 1 if call["dim"] is not None and call["self"].numel() > 0 else 0


def _long_slices(call: Call) -> int | None:
    """Slices of up to 2048 elements are sorted in one kernel."""
    shape = call["self"].shape
    return 0 if not shape or shape[call["dim"]] <= 2048 else None


def _half_of_grouped(call: Call) -> int:
    """Offsets are copied to the host unless one kernel takes all groups."""
    return int(call["self"].dtype != torch.bfloat16 and call.on_device("offs"))


def _goes_on_nested(_: Call) -> int | None:
    """An encoder that computes no gradients packs its batch into a nested tensor, which is not followed."""
    return 0 if torch.is_grad_enabled() or torch.is_autocast_enabled() else None


_INDEXING = "native/TensorAdvancedIndexing.cpp, native/IndexingUtils.h"
_COPY = "native/cuda/Copy.cu, native/TensorConversions.cpp"
_THRUST = "native/cuda/Unique.cu: unique_dim_cuda_template"
_UNIQUE = "native/cuda/UniqueCub.cu: num_out.item()"
_NESTED = "native/nested/NestedTensorMath.cpp"
_PACKS = "nn.TransformerEncoder then packs the batch by its padding mask, and reads the lengths on the host"
_MASK = "a boolean index becomes nonzero(), whose size the host must know"
_INDEX_COPY = "an integer index or a value on the CPU is copied to the device"

RULES: tuple[Rule, ...] = (
    # Reading values
    Rule("_local_scalar_dense", "d2h_copy", once, "native/cuda/CUDAScalar.cu", "the host reads one value"),
    Rule("equal", "d2h_copy", _equal, "native/cuda/Equal.cpp", "the host reads whether all are equal"),
    Rule("allclose", "d2h_copy", once, "native/TensorCompare.cpp", "the host reads whether all are close"),
    # Sizes that depend on the data
    Rule("nonzero", "d2h_copy", once, "native/cuda/Nonzero.cu", "the host must know how many there are"),
    Rule("masked_select", "d2h_copy", once, "native/cuda/IndexKernel.cpp", _MASK),
    Rule("masked_scatter_backward", "d2h_copy", once, "tools/autograd/derivatives.yaml", "masked_select of grad"),
    Rule("_unique", "d2h_copy", if_not_empty, _UNIQUE, "the host must know how many there are"),
    Rule("_unique2", "d2h_copy", if_not_empty, _UNIQUE, "the host must know how many there are"),
    Rule("unique_consecutive", "d2h_copy", _consecutive, _UNIQUE, "the host must know how many there are"),
    Rule("unique_consecutive", "stream", _consecutive_along_dim, _THRUST, "Thrust waits for what it was asked"),
    Rule("unique_dim", "stream", _along_dim, _THRUST, "Thrust waits for what it was asked"),
    Rule("repeat_interleave.Tensor", "d2h_copy", _repeats_without_size, "native/Repeat.h", "reads total and sign"),
    Rule("bincount", "d2h_copy", _bincount, "native/cuda/SummaryOps.cu", "reads the largest value, and the smallest"),
    Rule("histc", "d2h_copy", _histc, "native/cuda/SummaryOps.cu", "reads both bounds where none are given"),
    Rule("isin", "d2h_copy", _isin, "native/TensorCompare.cpp: isin_sorting", "unique of both arguments"),
    Rule("isin", "h2d_copy", _isin_sorts, "native/TensorCompare.cpp: isin_sorting", "a number is put last"),
    # Checks of arguments
    Rule("searchsorted", "d2h_copy", _sorter, "native/BucketizationUtils.h", "reads the sorter's bounds"),
    Rule("normal", "d2h_copy", _std_tensor, "native/DistributionTemplates.h", "checks that std is not negative"),
    Rule("_nested_tensor_from_mask_left_aligned", "d2h_copy", once, _NESTED, "checks that padding stands at the end"),
    Rule("_nested_tensor_from_mask_left_aligned", "d2h_copy", _goes_on_nested, _NESTED, _PACKS),
    # Indexing
    Rule("index", "d2h_copy", _index_masks, _INDEXING, _MASK),
    Rule("index", "h2d_copy", _index_copies, _INDEXING, _INDEX_COPY),
    Rule("_unsafe_index", "d2h_copy", _index_masks, _INDEXING, _MASK),
    Rule("_unsafe_index", "h2d_copy", _index_copies, _INDEXING, _INDEX_COPY),
    *(
        Rule(op, kind, count, _INDEXING, reason)
        for op in ("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")
        for kind, count, reason in (
            ("d2h_copy", _assignment_masks, _MASK),
            ("h2d_copy", _assignment_copies, _INDEX_COPY),
        )
    ),
    Rule("nonzero_static", "d2h_copy", never, "native/cuda/Nonzero.cu", "the size is given"),
    # Single values given as tensors
    Rule("masked_fill.Tensor", "d2h_copy", _value_on_device, "native/cuda/Indexing.cu", "value.item()"),
    Rule("masked_fill_.Tensor", "d2h_copy", _value_on_device, "native/cuda/Indexing.cu", "value.item()"),
    Rule("index_fill.int_Tensor", "d2h_copy", _value_on_device, _INDEXING, "value.item()"),
    Rule("index_fill_.int_Tensor", "d2h_copy", _value_on_device, _INDEXING, "value.item()"),
    Rule("where.self", "h2d_copy", _host_scalars_of_where, "native/TensorCompare.cpp", "CPU scalars are copied over"),
    # Copies
    Rule("_to_copy", "d2h_copy", _to_host, _COPY, "a blocking copy to the host"),
    Rule("_to_copy", "h2d_copy", _to_device, _COPY, "a blocking copy to the device"),
    Rule("copy_", "d2h_copy", _copy_to_host, _COPY, "a blocking copy, or one into pageable memory"),
    Rule("copy_", "h2d_copy", _copy_to_device, _COPY, "a blocking copy to the device"),
    *(
        Rule(op, kind, count, _COPY, "one blocking copy per pair of tensors")
        for op in ("_foreach_copy", "_foreach_copy_")
        for kind, count in (
            ("d2h_copy", lambda call: _foreach_crossing(call, to_host=True)),
            ("h2d_copy", lambda call: _foreach_crossing(call, to_host=False)),
        )
    ),
    # Known to wait, but not how often
    Rule("segment_reduce", "d2h_copy", _segments, "native/SegmentReduce.cpp", "reads whether the lengths are valid"),
    Rule("mode", "stream", _long_slices, "native/cuda/TensorModeKernel.cu", "Thrust waits on long slices"),
    Rule("_ctc_loss", "h2d_copy", times(3), "native/cuda/LossCTC.cu", "lengths and offsets are copied over"),
    Rule("_ctc_loss_backward", "h2d_copy", times(3), "native/cuda/LossCTC.cu", "lengths and offsets are copied over"),
    Rule("_grouped_mm", "d2h_copy", _half_of_grouped, "native/cuda/GroupedBlas.cpp", "offsets are copied to the host"),
    Rule("_cudnn_ctc_loss", "d2h_copy", cannot_tell, "native/cudnn/LossCTC.cpp", "copies lengths both ways"),
    *LINALG,
    *SPARSE,
    *TORCHVISION,
    *FSDP,
)
