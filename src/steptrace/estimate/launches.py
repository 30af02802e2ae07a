"""How many kernels, copies and fills one call of an operator launches.

As PyTorch's CUDA code launches them, which decides by types and shapes, and by arguments that nothing recorded. Of an
operator of a library (cuBLAS, cuDNN, cuFFT, cuSOLVER, cuSPARSE) each call of the library counts as one.
"""

from collections.abc import Callable, Mapping
from typing import Final

from steptrace.documents.operators import OperatorCalls, TensorSpec
from steptrace.estimate import sorting
from steptrace.estimate.layout import elements, has_gaps, is_contiguous, other_layouts
from steptrace.estimate.lists import is_of_lists, of_lists
from steptrace.estimate.reductions import layout
from steptrace.estimate.rules import OPERATORS, base_name

_LAUNCHES: Final[Mapping[str, int]] = OPERATORS["launches"]
#: Reductions, and the launches of each beside those of the reduction itself.
_REDUCTIONS: Final[Mapping[str, int]] = OPERATORS["launches_beside_reduction"]
#: Losses launch as many less where they are not reduced.
_REDUCED_LOSSES: Final[Mapping[str, int]] = OPERATORS["launches_of_reduced_losses"]
#: These copy tensors first that have gaps, or their dimensions in another order.
_MAKES_CONTIGUOUS: Final = frozenset(OPERATORS["makes_contiguous"]["names"])
_SUMS: Final = ("sum", "nansum", "prod")
#: Sums of these types are of a wider type, to which the elements are cast first.
_WHOLE: Final = ("bool", "int32", "int16", "int8", "uint8")
#: Operators with a rule of their own that may have no tensor on the GPU.
_WITHOUT_INPUTS: Final = ("randperm", "_to_copy")
_WITHOUT_BIAS: Final = 2
_TILE: Final = 4096
_MANY_ROWS: Final = 65536
_SHORT_ROW: Final = 2112


def launches(call: OperatorCalls) -> int:
    """Launches of one call; 0 of one that makes views or only reserves memory."""
    name = base_name(call.name)
    if call.is_view or _LAUNCHES.get(name) == 0:
        return 0
    if is_of_lists(name):
        return of_lists(call)
    if call.outputs and not any(map(elements, call.outputs)):
        return 0
    special = name in _SPECIAL and (call.inputs or name in _WITHOUT_INPUTS)
    count = _SPECIAL[name](call) if special else _usual(call, name)
    if name in _MAKES_CONTIGUOUS:
        count += sum(not is_contiguous(tensor) for tensor in call.inputs if tensor.strides)
    return count


def _usual(call: OperatorCalls, name: str) -> int:
    if name in _REDUCTIONS and call.inputs and call.outputs:
        return _REDUCTIONS[name] + _reduction(call, name)
    if call.outputs and not call.outputs[0].shape:
        return _REDUCED_LOSSES.get(name, _LAUNCHES.get(name, 1))
    overload = ".".join(call.name.split(".")[1:])
    return _LAUNCHES.get(overload, _LAUNCHES.get(name, 1))


def _reduction(call: OperatorCalls, name: str) -> int:
    """A cast before a sum in a wider type, counters where blocks share a result, and the reduction."""
    given, made = call.inputs[0], call.outputs[0]
    return 1 + layout(given, made).split + (name in _SUMS and given.dtype in _WHOLE)


def _convolution(call: OperatorCalls) -> int:
    return (2 if len(call.inputs) > _WITHOUT_BIAS else 1) + other_layouts(call.inputs[:2])


def _convolution_backward(call: OperatorCalls) -> int:
    gradient, *given = call.inputs
    return len(call.outputs) + other_layouts(given[:2], gradient)


def _batch_norm(call: OperatorCalls) -> int:
    """One by cuDNN, which takes images with weight and bias, but not in bfloat16."""
    given = call.inputs[0]
    by_cudnn = len(given.shape) > 2 and len(call.inputs) > 3 and given.dtype != "bfloat16"
    return 1 if by_cudnn else _LAUNCHES["native_batch_norm"]


def _nonzero(flags: TensorSpec) -> int:
    """CUB counts up to a tile of them in one kernel."""
    return _LAUNCHES["nonzero"] - (len(flags.shape) == 1) + (elements(flags) > _TILE)


def _indexed(call: OperatorCalls) -> int:
    """See ATen/native/cuda/Indexing.cu. A mask is searched first; adding up, as in a backward pass, sorts indices."""
    name = base_name(call.name)
    masks = [tensor for tensor in call.inputs[1:] if tensor.dtype in ("bool", "uint8")]
    of_numbers = [tensor for tensor in call.inputs[1:] if tensor.dtype in ("int64", "int32")]
    indices = len(of_numbers) + sum(len(mask.shape) for mask in masks)
    if len(call.inputs) == 1:  # the index lies on the host, as does a value that is put there
        return 2 if name == "index" else 3
    if name != "index" and masks and len(call.inputs) == 2:  # a value of the host is filled in under the mask
        return 1
    searched = 1 + sum(map(_nonzero, masks))
    if name == "index" or call.phase != "backward":
        return searched
    whole, values = call.inputs[0], call.inputs[-1]
    count = max(map(elements, of_numbers), default=elements(values))
    rows = elements(whole)
    for size in whole.shape[max(1, indices) :]:
        rows //= max(1, size)
    adding = 3 * indices + 1 + sorting.radix_sort(count, max(1, rows.bit_length()))
    return searched + adding + (not is_contiguous(values))


def _product(call: OperatorCalls) -> int:
    """A matrix whose rows and columns both have gaps is copied; a matrix that is added is copied into the result."""
    name = base_name(call.name)
    added = name in ("addmm", "baddbmm", "addmv") and not (name == "addmm" and len(call.inputs[0].shape) == 1)
    matrices = call.inputs[1:] if name.startswith(("add", "badd")) else call.inputs
    return 1 + added + sum(1 not in one.strides[-2:] for one in matrices if len(one.shape) > 1)


def _sort(call: OperatorCalls) -> int:
    return sorting.sort(call.inputs[0])


def _topk(call: OperatorCalls) -> int:
    return sorting.topk(call.inputs[0], call.outputs[0].shape[-1] if call.outputs and call.outputs[0].shape else 1)


def _median(call: OperatorCalls) -> int:
    given = call.inputs[0]
    if len(call.outputs) > 1:  # along a dimension
        return 1
    return 2 + sorting.sort(TensorSpec(shape=(elements(given),), strides=(1,), dtype=given.dtype))


def _embedding_backward(call: OperatorCalls) -> int:
    rows = call.outputs[0].shape[0] if call.outputs else 1
    return sorting.embedding_backward(elements(call.inputs[1]), rows)


def _bag_backward(call: OperatorCalls) -> int:
    of_maximum = len(call.inputs[-1].shape) > 1
    rows = call.outputs[0].shape[0] if call.outputs else 1
    return 2 if of_maximum else 11 + sorting.radix_sort(elements(call.inputs[1]), max(1, rows.bit_length()))


def _unique_rows(call: OperatorCalls) -> int:
    """Launches of `unique` along a dimension, without inverse and counts, which no record says to be asked for."""
    return 4 if len(call.inputs[0].shape) > 1 else 3


def _filled_by_mask(call: OperatorCalls) -> int:
    """The value is read by the host where it lies on the GPU."""
    return _LAUNCHES.get(base_name(call.name), 1) + (len(call.inputs) > 2)


def _layer_norm_backward(call: OperatorCalls) -> int:
    """See ATen/native/cuda/layer_norm_kernel.cu: of many short rows, weight and bias are added up in two steps."""
    of_input = sum(one.shape == call.inputs[0].shape for one in call.outputs)
    copied = sum(not is_contiguous(one) for one in call.inputs[:2])
    if len(call.inputs) < 5:
        return of_input + copied
    length = max(1, call.inputs[4].shape[-1])
    many = elements(call.inputs[0]) // length > _MANY_ROWS and length < _SHORT_ROW
    return of_input + copied + (5 if many else 1)


def _group_norm(call: OperatorCalls) -> int:
    return 2 if len(call.inputs) < 2 else 3


def _attention_backward(call: OperatorCalls) -> int:
    """In 16 bit its kernel does without three others; for many keys the gradients of queries start as zeros."""
    keys, width = call.inputs[2].shape[-2:]
    if "16" in call.inputs[0].dtype:
        return 2 + (keys > (64 if width <= 64 else 128))
    return 4 + (keys > 64)


def _added(call: OperatorCalls) -> int:
    """A copy and the sum; a backward pass adds to a tensor that it made itself."""
    return 1 if call.phase == "backward" else 2


def _copy(call: OperatorCalls) -> int:
    """A copy from or to the host is made of dense memory."""
    with_host = not call.outputs or len(call.inputs) < (2 if base_name(call.name) == "copy_" else 1)
    return 1 + (with_host and any(map(has_gaps, call.inputs)))


_SPECIAL: Final[Mapping[str, Callable[[OperatorCalls], int]]] = {
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "native_batch_norm": _batch_norm,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": lambda call: 3 if len(call.inputs) < 5 else 5,
    "native_layer_norm_backward": _layer_norm_backward,
    "randperm": lambda call: sorting.randperm(elements(call.outputs[0])),
    "nonzero": lambda call: _nonzero(call.inputs[0]),
    "masked_select": lambda call: 1 + _nonzero(call.inputs[-1]),
    "index": _indexed,
    "index_put": _indexed,
    "index_put_": _indexed,
    "_index_put_impl_": _indexed,
    "addmm": _product,
    "baddbmm": _product,
    "addmv": _product,
    "mm": _product,
    "bmm": _product,
    "sort": _sort,
    "topk": _topk,
    "median": _median,
    "_unique2": sorting.unique,
    "unique_consecutive": _unique_rows,
    "embedding_dense_backward": _embedding_backward,
    "_embedding_bag_backward": _bag_backward,
    "masked_fill": _filled_by_mask,
    "masked_fill_": _filled_by_mask,
    "index_fill": _filled_by_mask,
    "index_fill_": _filled_by_mask,
    "where": lambda call: 1 + (len(call.inputs) == 2 and call.name == "aten.where.self"),
    "cat": lambda call: -(-len(call.inputs) // (128 if all(map(is_contiguous, call.inputs)) else 64)),
    "cumsum": lambda call: 1 + (len(call.inputs[0].shape) == 1) + (call.inputs[0].dtype in _WHOLE),
    "cumprod": lambda call: 1 + (len(call.inputs[0].shape) == 1) + (call.inputs[0].dtype in _WHOLE),
    "logcumsumexp": lambda call: 1 + (len(call.inputs[0].shape) == 1),
    "block_diag": lambda call: 1 + len(call.inputs),
    "im2col": lambda call: 1 + call.inputs[0].shape[0],
    "searchsorted": lambda call: 4 if len(call.inputs) > 2 else 1,
    "_scaled_dot_product_efficient_attention_backward": _attention_backward,
    "scatter_add": _added,
    "index_add": _added,
    "masked_scatter_backward": lambda call: 1 + _nonzero(call.inputs[-1]),
    "multinomial": lambda call: 12 + len(call.inputs[0].shape) - (call.outputs[0].shape[-1] == 1),
    "constant_pad_nd": lambda call: 1 + (elements(call.outputs[0]) > elements(call.inputs[0])),
    "copy_": _copy,
    "_to_copy": _copy,
}
