"""How many kernels, copies and fills one call of an operator launches.

As PyTorch's CUDA code launches them, which decides by types and shapes, and by some arguments. Of an operator of a
library (cuBLAS, cuDNN, cuFFT, cuSOLVER, cuSPARSE) each call counts as one.
"""

from collections.abc import Callable, Mapping
from typing import Final

from steptrace.documents.estimate import OperatorCalls, TensorSpec
from steptrace.estimate import cudnn
from steptrace.estimate.layout import elements, has_gaps, is_contiguous, item_bytes, other_layouts, reduction_layout
from steptrace.estimate.lists import is_of_lists, of_lists
from steptrace.estimate.rules import OPERATORS, base_name

_LAUNCHES: Final[Mapping[str, int]] = OPERATORS["launches"]
#: Reductions, and the launches of each beside those of the reduction itself.
_REDUCTIONS: Final[Mapping[str, int]] = OPERATORS["launches_beside_reduction"]
#: Losses launch as many less where they are not reduced.
_REDUCED_LOSSES: Final[Mapping[str, int]] = OPERATORS["launches_of_reduced_losses"]
#: These copy tensors first that have gaps, or their dimensions in another order.
_MAKES_CONTIGUOUS: Final = frozenset(OPERATORS["makes_contiguous"]["names"])
#: The same, but for images whose channels lie last in all.
_OF_ONE_LAYOUT: Final = frozenset(OPERATORS["of_one_layout"]["names"])
_SUMS: Final = ("sum", "nansum", "prod")
#: Sums of these types are of a wider type, to which the elements are cast first.
_WHOLE: Final = ("bool", "int32", "int16", "int8", "uint8")
#: Operators that read or set elements by indices.
INDEXING: Final = ("index", "index_put", "index_put_", "_index_put_impl_")
#: An operator whose launches PyTorch 2.14 has changed.
EFFICIENT_ATTENTION: Final = "_scaled_dot_product_efficient_attention"
#: Operators with a rule of their own that may have no tensor on the GPU.
_WITHOUT_INPUTS: Final = ("randperm", "_to_copy")
#: CUB sorts up to so many items in one kernel. By kernels of its own, ATen sorts rows of up to so many elements
#: and adds up the gradients of an embedding for up to so many indices.
_ONE_TILE: Final = 2304
_SORTED_ROW: Final = 4096
_OF_SORTED_ROWS: Final = 5
_UNSORTED: Final = 3072
#: About as many random bits are sorted by randperm.
_RANDOM_BITS: Final = 40
_TILE: Final = 4096
#: The most frequent element of rows of up to so many is searched in one block; of longer ones by so many launches of
#: Thrust beside the sort, copies of single values among them.
_BLOCK_ROW: Final = 2048
_COUNTING: Final = 17
#: Attention computes with a position's heads side by side.
_HEADS_INSIDE: Final = (0, 2, 1, 3)
_MANY_ROWS: Final = 65536
_SHORT_ROW: Final = 2112


def launches(call: OperatorCalls) -> int:
    """Launches of one call; 0 of one that makes views or only reserves memory."""
    name = base_name(call.name)
    if call.is_view or _LAUNCHES.get(name) == 0:
        return 0
    if is_of_lists(name):
        return of_lists(call)
    sized_by = call.inputs if name == "nonzero" else call.outputs  # which counts before it knows that there are none
    if sized_by and not any(map(elements, sized_by)):
        return 0
    special = name in _SPECIAL and (call.inputs or name in _WITHOUT_INPUTS)
    usual = _SPECIAL[name](call) if special else _usual(call, name)
    coalesced = ", coalesced" if call.arguments.get("is_coalesced") else ""
    count = _LAUNCHES.get(f"{_overload(call)}({len(call.inputs)}{coalesced})", usual)
    if name in _MAKES_CONTIGUOUS:
        count += sum(not is_contiguous(tensor) for tensor in call.inputs if tensor.strides)
    if name in _OF_ONE_LAYOUT:
        count += other_layouts(call.inputs)
    return count


def _usual(call: OperatorCalls, name: str) -> int:
    if name in _REDUCTIONS and call.inputs and call.outputs:
        return _REDUCTIONS[name] + _reduction(call, name)
    if name in _REDUCED_LOSSES and call.outputs and not call.outputs[0].shape:
        return _REDUCED_LOSSES[name]
    return _LAUNCHES.get(_overload(call), _LAUNCHES.get(name, 1))


def _overload(call: OperatorCalls) -> str:
    """`addmm.default` of `aten.addmm.default`."""
    return call.name.partition(".")[2]


def _reduction(call: OperatorCalls, name: str) -> int:
    """A cast before a sum in a wider type, counters where blocks share a result, and the reduction."""
    given, made = call.inputs[0], call.outputs[0]
    return 1 + reduction_layout(given, made).split + (name in _SUMS and given.dtype in _WHOLE)


def _nonzero(flags: TensorSpec) -> int:
    """CUB counts up to a tile of them in one kernel."""
    return _LAUNCHES["nonzero"] - (len(flags.shape) == 1) + (elements(flags) > _TILE)


def _indexed(call: OperatorCalls) -> int:
    """See ATen/native/cuda/Indexing.cu. A mask is searched first; to add up, indices are checked and sorted.

    Indices and a value that lie on the host are copied first; 32-bit indices are cast. A backward pass adds to zeros of
    its own, in place and without checks.
    """
    name, accumulate = base_name(call.name), bool(call.arguments.get("accumulate"))
    of_host, value_of_host = int(call.arguments.get("host_indices", 0)), bool(call.arguments.get("host_value"))
    given = call.inputs[1:] if name == "index" or value_of_host else call.inputs[1:-1]
    masks = [tensor for tensor in given if tensor.dtype in ("bool", "uint8")]
    of_numbers = [tensor for tensor in given if tensor.dtype in ("int64", "int32")]
    indices = len(of_numbers) + sum(len(mask.shape) for mask in masks)
    if masks and value_of_host and len(given) == 1 and not accumulate:  # the value is filled in under the mask
        return 1
    copied = of_host + value_of_host + sum(tensor.dtype == "int32" for tensor in of_numbers)
    searched = 1 + copied + sum(map(_nonzero, masks)) + (name == "index_put" and call.phase != "backward")
    if not accumulate:
        return searched
    whole, values = call.inputs[0], call.inputs[-1]
    count = max(map(elements, of_numbers), default=elements(values))
    rows = elements(whole)
    for size in whole.shape[max(1, indices + of_host) :]:
        rows //= max(1, size)
    # Indices of the host are made one there, to which the others are added.
    adding = (2 if call.phase == "backward" else 7) * indices + max(0, indices - (not of_host))
    sorting = 2 + radix_sort(count, rows.bit_length())
    is_repeated = value_of_host or elements(values) * rows < count * elements(whole)
    return searched + adding + sorting + (is_repeated or not is_contiguous(values))


def _product(call: OperatorCalls) -> int:
    """A matrix whose rows and columns both have gaps is copied; a matrix that is added is copied into the result."""
    name = base_name(call.name)
    added = name in ("addmm", "baddbmm", "addmv") and not (name == "addmm" and len(call.inputs[0].shape) == 1)
    matrices = call.inputs[1:] if name.startswith(("add", "badd")) else call.inputs
    return 1 + added + sum(1 not in one.strides[-2:] for one in matrices if len(one.shape) > 1)


def radix_sort(count: int, bits: int) -> int:
    """Launches of CUB's sort of so many items by so many bits."""
    return 1 if count <= _ONE_TILE else 4 + 2 * -(-bits // 8)


def _sort(given: TensorSpec) -> int:
    """Along the last dimension; long rows are sorted together."""
    if not given.shape or given.shape[-1] <= _SORTED_ROW:
        return _OF_SORTED_ROWS
    return 2 + radix_sort(elements(given), 8 * item_bytes(given))


def _unique(call: OperatorCalls) -> int:
    """Of all elements; results that were not asked for are empty."""
    given = call.inputs[0]
    inverse = len(call.outputs) > 1 and elements(call.outputs[1]) > 0
    return 3 + radix_sort(elements(given), 8 * item_bytes(given)) + 5 * inverse


def _unique_rows(call: OperatorCalls) -> int:
    """Of rows along a dimension, which are copied unless it is the first, or of all elements."""
    given = call.arguments
    inverse, counts = (bool(given.get(name)) for name in ("return_inverse", "return_counts"))
    if given.get("dim") is None:
        return 3 + 3 * inverse
    sorting, copied = base_name(call.name) == "unique_dim", bool(given["dim"])
    return 4 + sorting + copied + 5 * inverse + 4 * counts


def _mode(call: OperatorCalls) -> int:
    """See ATen/native/cuda/TensorModeKernel.cu: rows too long for one block are sorted and counted one by one."""
    rows = max(1, elements(call.outputs[0]))
    length = elements(call.inputs[0]) // rows
    if length <= _BLOCK_ROW:
        return 1
    return 1 + rows * (_COUNTING + radix_sort(length, 8 * item_bytes(call.inputs[0])))


def _multinomial(call: OperatorCalls) -> int:
    """One draw is the same with replacement as without."""
    rows, several = len(call.inputs[0].shape) > 1, call.outputs[0].shape[-1] > 1
    return 6 - rows if call.arguments.get("replacement") and several else 12 + rows + several


def isin_sorts(asked: int, among: int) -> bool:
    """Whether `torch.isin` sorts so many elements, see ATen/native/TensorCompare.cpp; it compares few one by one."""
    return among >= int(10 * asked**0.145)


def _isin(call: OperatorCalls) -> int:
    """What is sorted has been made unique before, unless it is already."""
    if len(call.inputs) < 2:  # the other is a number
        return 1 if call.name.endswith(".Tensor_Scalar") else 4
    asked, among = call.inputs
    if not isin_sorts(elements(asked), elements(among)):
        return 4
    both = elements(asked) + elements(among)
    count = 6 + (_OF_SORTED_ROWS if both <= _SORTED_ROW else 2 + radix_sort(both, 8 * item_bytes(asked)))
    if not call.arguments.get("assume_unique"):
        count += 12 + sum(radix_sort(elements(one), 8 * item_bytes(one)) for one in call.inputs)
    return count


def _segment_reduce(call: OperatorCalls) -> int:
    """By offsets, or by lengths that are checked first."""
    return 2 if call.arguments.get("offsets") else 5 if call.arguments.get("unsafe") else 11


def _coalesce(call: OperatorCalls) -> int:
    """Indices of several dimensions are made one number each, and of that again."""
    dimensions = call.inputs[1].shape[0]
    return 8 if dimensions == 1 else 9 + 3 * dimensions


def _clone(call: OperatorCalls) -> int:
    """A sparse gradient is not copied but taken, unless its values have gaps."""
    if len(call.inputs) == 1:
        return 1
    return 0 if call.phase == "backward" and is_contiguous(call.inputs[-1]) else 2


def _grouped_product(call: OperatorCalls) -> int:
    """A kernel of its own in bfloat16, else one for each group, whose ends are read first."""
    if call.inputs[0].dtype == "bfloat16":
        return 2
    return 1 + elements(call.inputs[2]) if len(call.inputs) > 2 else 1


def _embedding_backward(call: OperatorCalls) -> int:
    count, rows = elements(call.inputs[1]), call.outputs[0].shape[0] if call.outputs else 1
    return 2 if count <= _UNSORTED else 11 + radix_sort(count, rows.bit_length())


def _bag_backward(call: OperatorCalls) -> int:
    """A sparse gradient's values are looked up; maxima, with an index for each value, are added one by one."""
    if call.outputs and not call.outputs[0].strides:
        return 1
    return 2 if len(call.inputs[-1].shape) > 1 else 12


def _layer_norm_backward(call: OperatorCalls) -> int:
    """See ATen/native/cuda/layer_norm_kernel.cu: of many short rows, weight and bias are added up in two steps."""
    of_input = sum(one.shape == call.inputs[0].shape for one in call.outputs)
    copied = sum(not is_contiguous(one) for one in call.inputs[:2])
    if len(call.inputs) < 5:
        return of_input + copied
    length = max(1, call.inputs[4].shape[-1])
    many = elements(call.inputs[0]) // length > _MANY_ROWS and length < _SHORT_ROW
    return of_input + copied + (5 if many else 1)


def _attention_backward(call: OperatorCalls) -> int:
    """In 16 bit its kernel does without three others; for many keys the gradients of queries start as zeros."""
    gradient, keys = call.inputs[0], call.inputs[2]
    half = "16" in gradient.dtype
    many = 128 if half and keys.shape[-1] > 64 else 64
    return (1 if half else 4) + (keys.shape[-2] > many) + (not is_contiguous(gradient, _HEADS_INSIDE))


def _along_dimension(call: OperatorCalls) -> int:
    """CUB's initialisation and a scan for one dimension, a kernel of ATen's for more; whole numbers are cast."""
    given = call.inputs[0]
    return 1 + (len(given.shape) == 1) + (given.dtype in _WHOLE)


def _attention(call: OperatorCalls) -> int:
    """Since PyTorch 2.14 the state of random numbers, two results, is filled with zeros where nothing is dropped."""
    since_2_14 = call.torch is not None and call.torch >= (2, 14)
    return 3 if since_2_14 and not call.arguments.get("dropout_p") else 1


def _added(call: OperatorCalls) -> int:
    """A copy and the sum; a backward pass adds to a tensor that it made itself."""
    return 1 if call.phase == "backward" else 2


def _copy(call: OperatorCalls) -> int:
    """See ATen/native/cuda/Copy.cu: what a copy from or to the host changes beside, the GPU does with one of its own.

    That is another order of dimensions, gaps, repetition, and another type too unless the host waits.
    """
    host = call.host
    if host is None:
        return 1
    if not elements(host):
        return 0
    there = call.outputs[0] if call.outputs else call.inputs[0]
    same_type, same_shape = host.dtype == there.dtype, host.shape == there.shape
    if same_type and same_shape and host.strides == there.strides and not has_gaps(host):
        return 1
    casts = not same_type and bool(call.arguments.get("non_blocking"))
    if call.outputs:
        return 1 + (casts or not is_contiguous(there))
    made_dense = casts and has_gaps(there)
    return 1 + casts + (not (same_shape and (made_dense or is_contiguous(there))))


_SPECIAL: Final[Mapping[str, Callable[[OperatorCalls], int]]] = {
    "convolution": cudnn.convolution,
    "convolution_backward": cudnn.convolution_backward,
    "_cudnn_rnn": lambda call: 1 + bool(call.arguments.get("batch_first")),
    "_cudnn_rnn_backward": cudnn.recurrent_backward,
    "native_batch_norm": cudnn.batch_norm,
    "native_batch_norm_backward": cudnn.batch_norm_backward,
    "native_layer_norm_backward": _layer_norm_backward,
    "slice_backward": lambda call: 1 + bool(elements(call.inputs[0])),  # zeros, and what is copied to their slice
    "nonzero": lambda call: _nonzero(call.inputs[0]),
    "masked_select": lambda call: 1 + _nonzero(call.inputs[-1]),
    **dict.fromkeys(INDEXING, _indexed),
    "addmm": _product,
    "baddbmm": _product,
    "addmv": _product,
    "mm": _product,
    "bmm": _product,
    "sort": lambda call: _sort(call.inputs[0]),
    "_unique2": _unique,
    "unique_consecutive": _unique_rows,
    "unique_dim": _unique_rows,
    "_fused_moving_avg_obs_fq_helper": lambda call: 10 if call.arguments.get("per_row_fake_quant") else 4,
    "topk": lambda call: 1 + call.arguments.get("sorted", True),
    "histc": lambda call: 5 if call.arguments.get("min") == call.arguments.get("max") else 2,
    "segment_reduce": _segment_reduce,
    "_coalesce": _coalesce,
    "clone": _clone,
    "_grouped_mm": _grouped_product,
    "_fft_r2c": lambda call: 1 + (call.outputs[0].shape == call.inputs[0].shape),
    "bincount": lambda call: 5 - (call.inputs[0].dtype == "uint8"),  # which is never negative
    "isin": _isin,
    "repeat_interleave": lambda call: 7 if call.arguments.get("output_size") is None else 3,
    "mode": _mode,
    "multinomial": _multinomial,
    "_embedding_bag_backward": _bag_backward,
    "embedding_dense_backward": _embedding_backward,
    "cat": lambda call: -(-len(call.inputs) // (128 if all(map(is_contiguous, call.inputs)) else 64)),
    "cumsum": _along_dimension,
    "cumprod": _along_dimension,
    "logcumsumexp": _along_dimension,
    "randperm": lambda call: 4 + radix_sort(elements(call.outputs[0]), _RANDOM_BITS),
    "block_diag": lambda call: 1 + len(call.inputs),
    "im2col": lambda call: 1 + call.inputs[0].shape[0],
    EFFICIENT_ATTENTION: _attention,
    f"{EFFICIENT_ATTENTION}_backward": _attention_backward,
    "scatter_add": _added,
    "index_add": _added,
    "constant_pad_nd": lambda call: 1 + (elements(call.outputs[0]) > elements(call.inputs[0])),
    "copy_": _copy,
    "_to_copy": _copy,
}
