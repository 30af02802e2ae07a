"""Launches of operators on lists of tensors (`_foreach_*`, fused optimizers)."""

from collections.abc import Mapping, Sequence
from typing import Final

from steptrace.documents.estimate import OperatorCalls
from steptrace.estimate.kernel_classes import base_name
from steptrace.estimate.layout import elements

#: How many arguments of an operator are lists of tensors.
_LISTS: Final[Mapping[str, int]] = {
    "_foreach_addcmul_": 3,
    "_foreach_addcdiv_": 3,
    "_fused_adam_": 4,
    "_fused_adamw_": 4,
    "_fused_sgd_": 2,
    "_fused_adagrad_": 3,
}
_FUSED: Final = "_fused_"
#: By operator, the argument that adds another list where it is set: of momenta, or of the largest averages.
_ADDS_A_LIST: Final[Mapping[str, str]] = {
    "_fused_adam_": "amsgrad",
    "_fused_adamw_": "amsgrad",
    "_fused_sgd_": "momentum",
}
#: Operators that return one element for each tensor.
_OF_SCALARS: Final = ("_foreach_norm", "_foreach_max")
#: ATen/native/cuda/MultiTensorApply.cuh: the most chunks per launch, and the most tensors by the number of lists. With
#: one list and a number for each tensor it is fewer.
_MOST_CHUNKS: Final = 320
_MOST_TENSORS: Final = (110, 64, 48, 36, 30)
_MOST_WITH_NUMBERS: Final = 96
#: Factor on these limits where the arguments of a launch may take 32 KB.
_TIMES_WITH_32_KB: Final = 7
_CHUNK: Final = 65536


def is_of_lists(name: str) -> bool:
    """Whether an operator works on lists of tensors."""
    return name.startswith(("_foreach_", _FUSED)) and not name.startswith(("_fused_rms_norm", "_fused_moving_avg"))


def lists_of(call: OperatorCalls) -> int:
    """How many arguments of such an operator are lists of tensors."""
    name = base_name(call.name)
    if name in _LISTS:
        return _LISTS[name] + bool(call.arguments.get(_ADDS_A_LIST.get(name, "")))
    takes_two = call.name.endswith(".List") or name in ("_foreach_copy_", "_foreach_lerp_", "_foreach_lerp")
    return 2 if takes_two and len(call.inputs) % 2 == 0 else 1


def of_lists(call: OperatorCalls) -> int:
    """Launches of one call of such an operator."""
    name = base_name(call.name)
    lists = lists_of(call)
    # After the lists, fused optimizers have another list with the step of each parameter, of one element each.
    length = len(call.inputs) // (lists + 1 if name.startswith(_FUSED) and name != "_fused_sgd_" else lists)
    first = call.inputs[:length]
    if call.name.endswith(".List") and any(
        a.shape != b.shape for a, b in zip(first, call.inputs[length:], strict=False)
    ):
        return length  # one operator per pair
    lists += not name.endswith("_") and name not in _OF_SCALARS  # the results are another list
    extra = 2 if name in _OF_SCALARS else 0
    most = _MOST_WITH_NUMBERS if lists == 1 and call.name.endswith(".ScalarList") else _MOST_TENSORS[lists - 1]
    times = 1 if _has_arguments_of_4_kb(call) else _TIMES_WITH_32_KB
    return _chunked([elements(tensor) for tensor in first], most * times, _MOST_CHUNKS * times) + extra


def _has_arguments_of_4_kb(call: OperatorCalls) -> bool:
    """Whether launch arguments are limited to 4 KB: before PyTorch 2.12, and in builds for CUDA before 13."""
    return (call.torch is not None and call.torch < (2, 12)) or (call.cuda is not None and call.cuda < 13)


def _chunked(sizes: Sequence[int], most: int, most_chunks: int) -> int:
    """Launches of multi_tensor_apply on tensors of these sizes, with a most of tensors and chunks per launch."""
    count = 0
    tensors = 0
    chunks = 0
    for size in sizes:
        of_tensor = -(-size // _CHUNK)
        tensors += 1 if of_tensor else 0
        while of_tensor:
            taken = min(of_tensor, most_chunks - chunks)
            of_tensor -= taken
            chunks += taken
            if chunks == most_chunks or (tensors == most and not of_tensor):
                count += 1
                chunks = 0
                tensors = 1 if of_tensor else 0
    return count + (chunks > 0)
