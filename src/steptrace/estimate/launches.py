"""How many kernels, copies and fills one call of an operator launches."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from steptrace.documents.operators import OperatorCalls, TensorSpec
from steptrace.estimate.rules import OPERATORS, base_name

_LAUNCHES: Final[Mapping[str, int]] = OPERATORS["launches"]
#: Of operators on lists: tensors of one position are one argument's, so many arguments are lists of tensors.
_LISTS: Final[Mapping[str, int]] = {
    "_foreach_addcmul_": 3,
    "_foreach_addcdiv_": 3,
    "_fused_adam_": 4,
    "_fused_adamw_": 4,
    "_fused_sgd_": 2,
    "_fused_adagrad_": 3,
}
#: Operators that look for the true elements of a mask among their indices.
_INDEXED: Final = ("index", "index_put", "index_put_", "_index_put_impl_")
_WITHOUT_BIAS: Final = 2
#: A dimension of up to so many elements is sorted by a kernel of its own, see ATen/native/cuda/Sort.cu.
_SHORT_SORT: Final = 4096
_LAUNCHES_OF_SHORT_SORT: Final = 5
_FUSED: Final = "_fused_"
#: ATen/native/cuda/MultiTensorApply.cuh: a launch takes so many tensors, by the number of lists, and so many chunks.
_MOST_TENSORS: Final = (110, 64, 48, 36, 30)
_MOST_CHUNKS: Final = 320
_CHUNK: Final = 65536
#: Sums are split from so many elements on, or rows, and up to so many results.
_SPLIT_ALL: Final = 8192
_SPLIT_ROWS: Final = 256
_MOST_SPLIT: Final = 65536


def launches(call: OperatorCalls) -> int:
    """Launches of one call; 0 of one that makes views or only reserves memory."""
    name = base_name(call.name)
    if call.is_view or _LAUNCHES.get(name) == 0:
        return 0
    if is_of_lists(name):
        return _of_lists(call, name)
    if call.outputs and not any(map(elements, call.outputs)):
        return 0
    if name == "convolution":
        return 2 if len(call.inputs) > _WITHOUT_BIAS else 1
    if name == "convolution_backward":
        return len(call.outputs)
    if name in ("sum", "mean") and _is_split(call):
        return 2
    if name == "nonzero":
        return _nonzero(call.inputs[0])
    if name == "sort" and call.inputs[0].shape[-1:] <= (_SHORT_SORT,):
        return _LAUNCHES_OF_SHORT_SORT
    if name == "masked_select":
        return 1 + _nonzero(call.inputs[-1])
    return _indexed(call) if name in _INDEXED else _LAUNCHES.get(name, 1)


def _nonzero(flags: TensorSpec) -> int:
    return _LAUNCHES["nonzero"] - (len(flags.shape) == 1)


def _indexed(call: OperatorCalls) -> int:
    """See ATen/native/cuda/Indexing.cu. A mask is searched first; adding up, as in a backward pass, sorts indices."""
    name = base_name(call.name)
    masks = [tensor for tensor in call.inputs[1:] if tensor.dtype in ("bool", "uint8")]
    indices = sum(tensor.dtype in ("int64", "int32") for tensor in call.inputs[1:]) + sum(
        len(mask.shape) for mask in masks
    )
    if name != "index" and masks and len(call.inputs) == 2:  # a value of the host is filled in under the mask
        return 1
    adds_up = name != "index" and call.phase == "backward"
    return 1 + sum(map(_nonzero, masks)) + (3 * indices + 2 if adds_up else 0)


def _is_split(call: OperatorCalls) -> bool:
    """Whether a sum takes several blocks per element, whose counters are cleared first.

    For sums over all elements and over the first dimensions, as of a bias's gradient; see ATen/native/cuda/Reduce.cuh.
    """
    if not call.inputs or not call.outputs:
        return False
    given, made = call.inputs[0], call.outputs[0]
    results = elements(made)
    if results == 1:
        return elements(given) >= _SPLIT_ALL
    over_first = math.prod(made.shape[-1:]) == given.shape[-1]
    return over_first and results <= _MOST_SPLIT and elements(given) >= _SPLIT_ROWS * results


def is_of_lists(name: str) -> bool:
    """Whether an operator works on lists of tensors."""
    return name.startswith(("_foreach_", _FUSED)) and name not in ("_fused_rms_norm", "_fused_rms_norm_backward")


def lists_of(call: OperatorCalls) -> int:
    """How many arguments of such an operator are lists of tensors."""
    name = base_name(call.name)
    if name in _LISTS:
        return _LISTS[name]
    takes_two = call.name.endswith(".List") or name in ("_foreach_copy_", "_foreach_lerp_")
    return 2 if takes_two and len(call.inputs) % 2 == 0 else 1


def _of_lists(call: OperatorCalls, name: str) -> int:
    lists = lists_of(call)
    tensors = call.inputs[: _length(call, name, lists)]
    extra = 2 if name == "_foreach_norm" else 0
    return _chunked([elements(tensor) for tensor in tensors], lists) + extra


def _length(call: OperatorCalls, name: str, lists: int) -> int:
    """Tensors of the first list; behind the others, fused optimizers have one of their steps, of an element each."""
    return len(call.inputs) // (lists + 1 if name.startswith(_FUSED) and name != "_fused_sgd_" else lists)


def _chunked(sizes: Sequence[int], lists: int) -> int:
    """Launches of multi_tensor_apply."""
    most = _MOST_TENSORS[lists - 1]
    count = tensors = chunks = 0
    for size in sizes:
        of_tensor = -(-size // _CHUNK)
        tensors += 1 if of_tensor else 0
        while of_tensor:
            taken = min(of_tensor, _MOST_CHUNKS - chunks)
            of_tensor -= taken
            chunks += taken
            if chunks == _MOST_CHUNKS or (tensors == most and not of_tensor):
                count, chunks, tensors = count + 1, 0, 1 if of_tensor else 0
    return count + (chunks > 0)


def elements(tensor: TensorSpec) -> int:
    """Elements that it shows."""
    return math.prod(tensor.shape)
