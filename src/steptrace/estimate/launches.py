"""How many kernels, copies and fills one call of an operator launches.

The counts follow PyTorch's CUDA code, which depends on types, shapes and some arguments. Cases that differ by a launch
or two are left out, since the host's time per launch is known only within a factor of 6. Each call of a library
(cuBLAS, cuDNN, cuFFT, cuSOLVER, cuSPARSE) counts as one launch.
"""

from collections.abc import Callable, Mapping
from typing import Final

from steptrace.documents.estimate import OperatorCalls, TensorSpec
from steptrace.estimate import cudnn
from steptrace.estimate.coordinate_launches import coalescing, launches_by_coordinates
from steptrace.estimate.kernel_classes import OPERATORS, base_name
from steptrace.estimate.layout import elements, has_gaps, is_contiguous, item_bytes, other_layouts, reduction_layout
from steptrace.estimate.lists import is_of_lists, of_lists

_LAUNCHES: Final[Mapping[str, int]] = OPERATORS["launches"]
#: Reductions, and how many launches each makes in addition to the reduction itself.
_REDUCTIONS: Final[Mapping[str, int]] = OPERATORS["launches_beside_reduction"]
#: Launches of losses that are reduced to one number; without the reduction they launch fewer.
_REDUCED_LOSSES: Final[Mapping[str, int]] = OPERATORS["launches_of_reduced_losses"]
#: Operators that first copy tensors that have gaps, or whose dimensions lie in another order.
_MAKES_CONTIGUOUS: Final = frozenset(OPERATORS["makes_contiguous"]["names"])
#: The same, except where all images are channels-last.
_OF_ONE_LAYOUT: Final = frozenset(OPERATORS["of_one_layout"]["names"])
_SUMS: Final = ("sum", "nansum", "prod")
#: Sums of these types are computed in a wider type; the elements are cast first.
_WHOLE: Final = ("bool", "int32", "int16", "int8", "uint8")
#: Operators that read or set elements by indices.
INDEXING: Final = ("index", "index_put", "index_put_", "_index_put_impl_")
#: Operators with a rule of their own that may have no input on the GPU.
_WITHOUT_INPUTS: Final = ("randperm", "_to_copy")
#: Launches of operators without elements that launch something all the same: they set flags and determinants.
_OF_NOTHING: Final[Mapping[str, int]] = OPERATORS["launches_of_nothing"]
#: Limits on the number of items. CUB sorts up to `_ONE_TILE` items in one kernel. ATen has kernels of its own that sort
#: rows of up to `_SORTED_ROW` elements, with `_OF_SORTED_ROWS` launches, and that add up the gradients of an embedding
#: for up to `_UNSORTED` indices.
_ONE_TILE: Final = 2304
_SORTED_ROW: Final = 4096
_OF_SORTED_ROWS: Final = 5
_UNSORTED: Final = 3072
#: About this many random bits are sorted by randperm.
_RANDOM_BITS: Final = 40
#: `mode`: one block searches a row of up to `_BLOCK_ROW` elements. A longer row takes a sort and `_COUNTING` further
#: launches of Thrust, including copies of single values.
_BLOCK_ROW: Final = 2048
_COUNTING: Final = 17
#: CUB counts up to this many flags in one kernel.
_COUNTED: Final = 4096
#: cuFFT transforms up to so many axes in one call.
_CUFFT_AXES: Final = 3
#: Dimensions of the weight of `nn.Bilinear`: output, and both inputs.
_DIMS_OF_BILINEAR: Final = 3
#: Layer norm's backward pass adds up weight and bias in two steps for more rows than this, if they are this short.
_MANY_ROWS: Final = 65536
_SHORT_ROW: Final = 2112


def launches(call: OperatorCalls) -> int:
    """Launches of one call; 0 if it makes views or only allocates memory."""
    name = base_name(call.name)
    by_coordinates = launches_by_coordinates(call, name)
    if by_coordinates is not None:
        return by_coordinates
    if call.is_view or _LAUNCHES.get(name) == 0:
        return 0
    if _OF_NOTHING.get(name) is not None and call.inputs and not elements(call.inputs[0]):
        return _OF_NOTHING[name]
    if is_of_lists(name):
        return of_lists(call)
    # Operators with empty results launch nothing. `nonzero` has to count first, so its input decides.
    sized_by = call.inputs if name == "nonzero" else call.outputs
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
    """The operator's name with its overload: `addmm.default` for `aten.addmm.default`."""
    return call.name.partition(".")[2]


def _reduction(call: OperatorCalls, name: str) -> int:
    """The reduction, a fill of counters if blocks share a result, and a cast before a sum in a wider type."""
    source = call.inputs[0]
    result = call.outputs[0]
    return 1 + reduction_layout(source, result).split + (name in _SUMS and source.dtype in _WHOLE)


def _nonzero(flags: TensorSpec) -> int:
    """Launches to find the nonzero elements: with one dimension no conversion is needed; many flags take two steps."""
    return _LAUNCHES["nonzero"] - (len(flags.shape) == 1) + (elements(flags) > _COUNTED)


def _indexed(call: OperatorCalls) -> int:
    """Launches of indexing, see ATen/native/cuda/Indexing.cu.

    Masks are turned into indices first. With `accumulate`, indices are checked and sorted. Indices or a value on the
    host are copied first, and 32-bit indices are cast. A backward pass accumulates into a new tensor of zeros, in
    place and without checks.
    """
    name = base_name(call.name)
    accumulate = bool(call.arguments.get("accumulate"))
    of_host = int(call.arguments.get("host_indices", 0))
    value_of_host = bool(call.arguments.get("host_value"))
    indexed_by = call.inputs[1:] if name == "index" or value_of_host else call.inputs[1:-1]
    masks = [tensor for tensor in indexed_by if tensor.dtype in ("bool", "uint8")]
    of_numbers = [tensor for tensor in indexed_by if tensor.dtype in ("int64", "int32")]
    indices = len(of_numbers) + sum(len(mask.shape) for mask in masks)
    if masks and value_of_host and len(indexed_by) == 1 and not accumulate:  # the value is filled in under the mask
        return 1
    copied = of_host + value_of_host + sum(tensor.dtype == "int32" for tensor in of_numbers)
    searched = 1 + copied + sum(map(_nonzero, masks)) + (name == "index_put" and call.phase != "backward")
    if not accumulate:
        return searched
    whole = call.inputs[0]
    values = call.inputs[-1]
    count = max(map(elements, of_numbers), default=elements(values))
    rows = elements(whole)
    for size in whole.shape[max(1, indices + of_host) :]:
        rows //= max(1, size)
    # Indices on the host are combined into one there, and the other indices are added to it.
    adding = (2 if call.phase == "backward" else 7) * indices + max(0, indices - (not of_host))
    sorting = 2 + radix_sort(count, rows.bit_length())
    is_repeated = value_of_host or elements(values) * rows < count * elements(whole)
    return searched + adding + sorting + (is_repeated or not is_contiguous(values))


def _product(call: OperatorCalls) -> int:
    """The product, a copy of each matrix without a unit stride, and a copy of an added matrix into the result."""
    name = base_name(call.name)
    added = name in ("addmm", "baddbmm", "addmv") and not (name == "addmm" and len(call.inputs[0].shape) == 1)
    matrices = call.inputs[1:] if name.startswith(("add", "badd")) else call.inputs
    return 1 + added + sum(1 not in matrix.strides[-2:] for matrix in matrices if len(matrix.shape) > 1)


def radix_sort(count: int, bits: int) -> int:
    """Launches of CUB's radix sort of `count` items by keys of `bits` bits."""
    return 1 if count <= _ONE_TILE else 4 + 2 * -(-bits // 8)


def _sort(keys: TensorSpec) -> int:
    """Launches of a sort along the last dimension; long rows are sorted together."""
    if not keys.shape or keys.shape[-1] <= _SORTED_ROW:
        return _OF_SORTED_ROWS
    return 2 + radix_sort(elements(keys), 8 * item_bytes(keys))


def _unique(call: OperatorCalls) -> int:
    """Launches of `unique` over all elements; outputs that were not requested are empty."""
    keys = call.inputs[0]
    inverse = len(call.outputs) > 1 and elements(call.outputs[1]) > 0
    return 3 + radix_sort(elements(keys), 8 * item_bytes(keys)) + 5 * inverse


def _unique_rows(call: OperatorCalls) -> int:
    """Launches of `unique` over slices along a dimension, or over all elements without one.

    Slices are copied unless the dimension is the first.
    """
    arguments = call.arguments
    inverse, counts = (bool(arguments.get(name)) for name in ("return_inverse", "return_counts"))
    if arguments.get("dim") is None:
        return 3 + 3 * inverse
    sorting = base_name(call.name) == "unique_dim"
    copied = bool(arguments["dim"])
    return 4 + sorting + copied + 5 * inverse + 4 * counts


def _mode(call: OperatorCalls) -> int:
    """Launches of `mode`; rows too long for one block are sorted and counted one by one.

    See ATen/native/cuda/TensorModeKernel.cu.
    """
    rows = max(1, elements(call.outputs[0]))
    length = elements(call.inputs[0]) // rows
    if length <= _BLOCK_ROW:
        return 1
    return 1 + rows * (_COUNTING + radix_sort(length, 8 * item_bytes(call.inputs[0])))


def _multinomial(call: OperatorCalls) -> int:
    """Launches of `multinomial`; a single draw takes the path without replacement."""
    several = call.outputs[0].shape[-1] > 1
    return 6 if call.arguments.get("replacement") and several else 13


def isin_sorts(asked: int, among: int) -> bool:
    """Whether `torch.isin` sorts to find `asked` elements among `among`; it compares few elements one by one.

    See ATen/native/TensorCompare.cpp.
    """
    return among >= int(10 * asked**0.145)


def _isin(call: OperatorCalls) -> int:
    """Launches of `isin`. Both sides are made unique before they are sorted, unless the caller says that they are."""
    if len(call.inputs) < 2:  # the other is a number
        return 1 if call.name.endswith(".Tensor_Scalar") else 4
    asked, among = call.inputs
    if not isin_sorts(elements(asked), elements(among)):
        return 4
    both = elements(asked) + elements(among)
    count = 6 + (_OF_SORTED_ROWS if both <= _SORTED_ROW else 2 + radix_sort(both, 8 * item_bytes(asked)))
    if not call.arguments.get("assume_unique"):
        count += 12 + sum(radix_sort(elements(tensor), 8 * item_bytes(tensor)) for tensor in call.inputs)
    return count


def _segment_reduce(call: OperatorCalls) -> int:
    """Launches of a reduction by segments, given as offsets, or as lengths that are checked first unless `unsafe`."""
    return 2 if call.arguments.get("offsets") else 5 if call.arguments.get("unsafe") else 11


def _grouped_product(call: OperatorCalls) -> int:
    """Launches of a grouped product: a special kernel in bfloat16; otherwise one product per group."""
    if call.inputs[0].dtype == "bfloat16":
        return 2
    return 1 + elements(call.inputs[2]) if len(call.inputs) > 2 else 1


def _embedding_backward(call: OperatorCalls) -> int:
    count = elements(call.inputs[1])
    rows = call.outputs[0].shape[0] if call.outputs else 1
    return 2 if count <= _UNSORTED else 11 + radix_sort(count, rows.bit_length())


def _bag_backward(call: OperatorCalls) -> int:
    """Launches of an embedding bag's backward pass: one for a sparse gradient, two for maxima, otherwise a sort."""
    if call.outputs and not call.outputs[0].strides:
        return 1
    return 2 if len(call.inputs[-1].shape) > 1 else 12


def _factors(call: OperatorCalls) -> int:
    """Launches of an LU factorization: more for a matrix that is not square, and of what unpacks the factors."""
    rows, columns = call.inputs[0].shape[-2:]
    unpacked = 8 if base_name(call.name) == "linalg_lu" else 0
    return unpacked + (2 if rows == columns else 6 if rows > columns else 8)


def _spectral(call: OperatorCalls) -> int:
    """Launches of a Fourier transform, see ATen/native/cuda/SpectralOps.cu.

    cuFFT takes up to three axes at once. A scale is multiplied in. The half of a transform of real numbers that cuFFT
    leaves out is filled in where it is asked for. A transform to real numbers works on a copy.
    """
    axes = call.arguments.get("dim")
    arguments = call.arguments
    count = len(axes) if isinstance(axes, list | tuple) else 1
    beside = base_name(call.name) == "_fft_c2r" or arguments.get("onesided") is False
    return -(-count // _CUFFT_AXES) + beside + bool(arguments.get("normalization"))


def _trilinear(call: OperatorCalls) -> int:
    """Launches of `nn.Bilinear`: zeros, and two products and a sum for each of its outputs."""
    weights = [tensor for tensor in (*call.inputs, *call.outputs) if len(tensor.shape) == _DIMS_OF_BILINEAR]
    return 1 + 3 * weights[0].shape[0] if weights else 4


def _layer_norm_backward(call: OperatorCalls) -> int:
    """Launches of a layer norm's backward pass; with many short rows, weight and bias are added up in two steps.

    See ATen/native/cuda/layer_norm_kernel.cu.
    """
    of_input = sum(output.shape == call.inputs[0].shape for output in call.outputs)
    if len(call.inputs) < 5:
        return of_input
    length = max(1, call.inputs[4].shape[-1])
    many = elements(call.inputs[0]) // length > _MANY_ROWS and length < _SHORT_ROW
    return of_input + (5 if many else 1)


def _attention_backward(call: OperatorCalls) -> int:
    """Launches of attention's backward pass; in 16 bit it needs three kernels fewer."""
    return 2 if "16" in call.inputs[0].dtype else 5


def _copy(call: OperatorCalls) -> int:
    """Launches of a copy from or to the host, see ATen/native/cuda/Copy.cu.

    A further copy on the GPU changes the layout (order of dimensions, gaps, broadcast). It also changes the type,
    unless the host waits and casts.
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
    "segment_reduce": _segment_reduce,
    "_coalesce": coalescing,
    "_grouped_mm": _grouped_product,
    "isin": _isin,
    **dict.fromkeys(("linalg_lu", "linalg_lu_factor_ex"), _factors),
    "repeat_interleave": lambda call: 7 if call.arguments.get("output_size") is None else 3,
    "mode": _mode,
    "multinomial": _multinomial,
    "_embedding_bag_backward": _bag_backward,
    "embedding_dense_backward": _embedding_backward,
    "cat": lambda call: -(-len(call.inputs) // (128 if all(map(is_contiguous, call.inputs)) else 64)),
    "randperm": lambda call: 4 + radix_sort(elements(call.outputs[0]), _RANDOM_BITS),
    "block_diag": lambda call: 1 + len(call.inputs),
    "im2col": lambda call: 1 + call.inputs[0].shape[0],
    "_scaled_dot_product_efficient_attention_backward": _attention_backward,
    **dict.fromkeys(("_fft_c2c", "_fft_c2r", "_fft_r2c"), _spectral),
    "_trilinear": _trilinear,
    "addbmm": lambda call: 1 + call.inputs[1].shape[0] if len(call.inputs) > 1 else 1,
    "addbmm_": lambda call: call.inputs[1].shape[0] if len(call.inputs) > 1 else 1,
    "copy_": _copy,
    "_to_copy": _copy,
}
