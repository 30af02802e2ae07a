"""Launches of operators on lists of tensors (`_foreach_*`, fused optimizers)."""

from collections.abc import Mapping, Sequence
from typing import Final

from steptrace.documents.estimate import OperatorCalls
from steptrace.estimate.layout import elements
from steptrace.estimate.rules import base_name

#: Tensors of one position are one argument's, so many arguments are lists of tensors.
_LISTS: Final[Mapping[str, int]] = {
    "_foreach_addcmul_": 3,
    "_foreach_addcdiv_": 3,
    "_fused_adam_": 4,
    "_fused_adamw_": 4,
    "_fused_sgd_": 2,
    "_fused_adagrad_": 3,
}
_FUSED: Final = "_fused_"
#: Not in place, and with a result of one element for each tensor.
_OF_SCALARS: Final = ("_foreach_norm", "_foreach_max")
#: ATen/native/cuda/MultiTensorApply.cuh: a launch takes so many chunks, and so many tensors, by the number of lists.
#: One list with a number for each tensor takes fewer.
_MOST_CHUNKS: Final = 320
_MOST_TENSORS: Final = (110, 64, 48, 36, 30)
_MOST_WITH_NUMBERS: Final = 96
#: So many times as many where the arguments of a launch may take 32 KB.
_TIMES_WITH_32_KB: Final = 7
_CHUNK: Final = 65536


def is_of_lists(name: str) -> bool:
    """Whether an operator works on lists of tensors."""
    return name.startswith(("_foreach_", _FUSED)) and not name.startswith(("_fused_rms_norm", "_fused_moving_avg"))


def lists_of(call: OperatorCalls) -> int:
    """How many arguments of such an operator are lists of tensors."""
    name = base_name(call.name)
    if name in _LISTS:
        return _LISTS[name]
    takes_two = call.name.endswith(".List") or name in ("_foreach_copy_", "_foreach_lerp_", "_foreach_lerp")
    return 2 if takes_two and len(call.inputs) % 2 == 0 else 1


def of_lists(call: OperatorCalls) -> int:
    """Launches of one call of such an operator."""
    name = base_name(call.name)
    lists = lists_of(call)
    # Behind the lists, fused optimizers have one of their steps, of an element each.
    length = len(call.inputs) // (lists + 1 if name.startswith(_FUSED) and name != "_fused_sgd_" else lists)
    first = call.inputs[:length]
    if call.name.endswith(".List") and any(
        a.shape != b.shape for a, b in zip(first, call.inputs[length:], strict=False)
    ):
        return length  # one operator per pair
    lists += not name.endswith("_") and name not in _OF_SCALARS  # the results are one, too
    extra = 2 if name in _OF_SCALARS else 0
    most = _MOST_WITH_NUMBERS if lists == 1 and call.name.endswith(".ScalarList") else _MOST_TENSORS[lists - 1]
    times = 1 if _has_arguments_of_4_kb(call) else _TIMES_WITH_32_KB
    return _chunked([elements(tensor) for tensor in first], most * times, _MOST_CHUNKS * times) + extra


def _has_arguments_of_4_kb(call: OperatorCalls) -> bool:
    """Whether a launch on lists of tensors takes fewer of them than PyTorch for CUDA 13 does since 2.12."""
    return (call.torch is not None and call.torch < (2, 12)) or (call.cuda is not None and call.cuda < 13)


def _chunked(sizes: Sequence[int], most: int, most_chunks: int) -> int:
    """Launches of multi_tensor_apply, of at most so many tensors and chunks."""
    count = tensors = chunks = 0
    for size in sizes:
        of_tensor = -(-size // _CHUNK)
        tensors += 1 if of_tensor else 0
        while of_tensor:
            taken = min(of_tensor, most_chunks - chunks)
            of_tensor -= taken
            chunks += taken
            if chunks == most_chunks or (tensors == most and not of_tensor):
                count, chunks, tensors = count + 1, 0, 1 if of_tensor else 0
    return count + (chunks > 0)
