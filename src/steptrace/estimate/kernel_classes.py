"""Which class of kernels an operator belongs to, by its name, its arithmetic and the layout of its tensors.

The kernels of a class, such as `product` or `batch norm backward`, share their constants. constants.toml says how fast
they are.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from steptrace.documents.estimate import OperatorCalls
from steptrace.estimate.cudnn import (
    groups,
    has_odd_channels,
    has_tiled_groups,
    has_winograd,
    images_and_weight,
    is_large,
    narrow_sides,
)
from steptrace.estimate.layout import channels_last, has_gaps, item_bytes

#: Names of operators by class, and launch counts of operators that launch more or fewer than one kernel.
OPERATORS: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("operators.toml").read_text(encoding="utf-8"))
_PRODUCTS: Final = frozenset(OPERATORS["product"]["names"])
#: The product of 8-bit whole numbers.
_WHOLE_PRODUCT: Final = "_int_mm"
_BATCHED: Final = frozenset(("bmm", "baddbmm", "baddbmm_", "addbmm", "addbmm_"))
_CONVOLUTIONS: Final = frozenset(OPERATORS["convolution"]["names"])
_ATTENTION: Final = tuple(OPERATORS["attention"]["starts"])
_BY_WARPS: Final = tuple(OPERATORS["attention"]["by_warps"])
_NORMS: Final = tuple(OPERATORS["normalisation"]["parts"])
_CLASS: Final[Mapping[str, str]] = {name: kind for kind, names in OPERATORS["classes"].items() for name in names}
_STARTS: Final[tuple[tuple[str, str], ...]] = tuple(
    (start, kind) for kind, starts in OPERATORS["class_starts"].items() for start in starts
)
#: Operators that read only part of their first tensor: as many elements as they return.
LOOKED_UP: Final = frozenset(OPERATORS["looked_up"]["names"])

#: Number formats by element type.
FORMATS: Final[Mapping[str, str]] = {
    "float64": "64",
    "float32": "32",
    "tf32": "tf32",
    "float16": "16",
    "bfloat16": "16",
    "float8_e4m3fn": "8",
    "float8_e5m2": "8",
    "int8": "int8",
}
#: Formats that tensor cores compute in.
TENSOR_CORES: Final = frozenset(("tf32", "16", "8", "int8"))
#: Namespaces of operators that communicate.
_COLLECTIVES: Final = ("c10d", "_c10d_functional", "symm_mem")
#: PyTorch's own operators that copy parameters and gradients for its collectives.
_COPIES: Final = "fsdp."
#: The namespace of kernels that a program has written itself.
OWN_KERNELS: Final = "kernel"
OWN_KERNEL: Final = "kernel of the program's own"
COLLECTIVE: Final = "collective"
CUSTOM: Final = "custom operator"
#: One whose library or program declares its cost.
DECLARED: Final = "custom operator, declared cost"
HOST_COPY: Final = "copy from or to the host"
UNCOVERED: Final = "not covered"
#: Classes without a rule: nothing says how long their kernels take.
WITHOUT_RULE: Final = frozenset((UNCOVERED,))
#: Classes whose times were never measured, and so tell nothing of a kernel in a trace.
NEVER_MEASURED: Final = frozenset((CUSTOM, DECLARED, *WITHOUT_RULE))
RECURRENT: Final = "recurrent layer"
REDUCTION: Final = "reduction"
STRIDED: Final = "strided elementwise"
ELEMENTWISE: Final = "elementwise"
#: A reduction that Inductor generates, with the maps of elements before and behind it.
FUSED_REDUCTION: Final = "fused reduction"
PRODUCT: Final = "product"
BATCHED_PRODUCT: Final = "batched product"
ATTENTION: Final = "attention"
#: Attention whose kernels feed tensor cores by warps, as those for Ampere do, on GPUs that have faster ones.
WARP_ATTENTION: Final = "attention by warps"
MISALIGNED: Final = "product, rows not a multiple of 8"
SORT: Final = "sort"
POOLING: Final = "pooling"
UNALIGNED_SOFTMAX: Final = "softmax, long rows not a multiple of 8"
ONE_BLOCK: Final = "cross-entropy of rows"
CONVOLUTION: Final = "convolution"
#: In float32, outside of tensor cores: a convolution without Winograd's form is a product of matrices.
IMPLICIT: Final = "convolution, implicit GEMM"
ODD_CHANNELS: Final = "convolution, channels not a multiple of 8"
#: An ending of names: cuDNN's batch norm of channels-last images loads 4 channels at a time.
UNALIGNED_NORM: Final = ", channels not a multiple of 4"
_OF_NORMS: Final = 4
DEPTHWISE: Final = "depthwise convolution"
#: For kernels of more than 7 x 7 cuDNN has no special kernels in channels-last.
LARGE_DEPTHWISE: Final = "depthwise convolution, large kernels"
GROUPED: Final = "grouped convolution"
#: For these groups cuDNN has kernels for tensor cores in channels-last.
TILED_GROUPS: Final = "grouped convolution, groups of 4 to 32 channels"
_MULTIPLE: Final = 8
#: Classes that were measured on images in 16 bit, and that compute much for each element.
OF_IMAGES: Final = ("batch norm", POOLING)
#: Elements of up to this many bytes are moved faster than their addresses are computed.
SHORT_ITEM: Final = 2
#: The most elements of a softmax row that a warp keeps in registers.
_LONGEST_IN_REGISTERS: Final = 1024


def base_name(operator: str) -> str:
    """The operator's name without namespace and overload: `addmm` for `aten.addmm.default`."""
    parts = operator.split(".")
    return parts[1] if len(parts) > 1 else operator


def kind_of(call: OperatorCalls, arithmetic: str) -> str:
    """The class of an operator that launches kernels; `arithmetic`: its number format, a value of `FORMATS`."""
    name = base_name(call.name)
    if call.name.startswith(_COLLECTIVES):
        return COLLECTIVE
    if call.name.startswith(_COPIES):
        return ELEMENTWISE
    if call.name.startswith(f"{OWN_KERNELS}."):
        return OWN_KERNEL
    if not call.name.startswith(("aten.", "prims.")):
        return CUSTOM if call.cost is None else DECLARED
    if call.host is not None or name == "_local_scalar_dense":
        return HOST_COPY
    backward = " backward" if "backward" in name else ""
    if name in _CONVOLUTIONS:
        return f"{_convolution(call, arithmetic)}{backward}"
    if name.startswith(_ATTENTION):
        by_warps = arithmetic == "16" and any(part in name for part in _BY_WARPS)
        return (WARP_ATTENTION if by_warps else ATTENTION) + backward
    if name in _PRODUCTS:
        return MISALIGNED if misaligned(call) else BATCHED_PRODUCT if name in _BATCHED else PRODUCT
    if name.startswith("_cudnn_rnn"):
        return RECURRENT
    if name in _CLASS:
        kind = _CLASS[name]
        return f"{POOLING}, channels last{backward}" if kind.startswith(POOLING) and _is_pooled_last(call) else kind
    by_start = next((kind for start, kind in _STARTS if name.startswith(start)), None)
    if by_start is not None:
        return by_start
    norm = next((what for part, what in zip(_NORMS, _NORM_CLASSES, strict=True) if part in name), None)
    if norm == "softmax" and not backward and _has_unaligned_rows(call):
        return UNALIGNED_SOFTMAX
    if norm == "batch norm" and not backward and not call.arguments.get("training", True):
        return "batch norm in evaluation"
    if norm is not None:
        images = call.inputs[int(bool(backward)) : int(bool(backward)) + 1]
        last = norm == "batch norm" and channels_last(images)
        if not last:
            return norm + backward
        return f"{norm}{UNALIGNED_NORM if images[0].shape[1] % _OF_NORMS else ''}, channels last{backward}"
    if any(part in name for part in OPERATORS["reduction"]["parts"]):
        return REDUCTION
    strided = any(map(has_gaps, call.inputs)) or _changes_order(call) or _repeats_an_input(call)
    return STRIDED if strided else ELEMENTWISE


def _is_pooled_last(call: OperatorCalls) -> bool:
    """Whether images are pooled in channels-last, for which there are separate kernels."""
    return channels_last([tensor for tensor in call.inputs[:2] if len(tensor.shape) >= 3])


_NORM_CLASSES: Final[tuple[str, ...]] = tuple(OPERATORS["normalisation"]["classes"])


def _has_unaligned_rows(call: OperatorCalls) -> bool:
    """Whether a 16-bit softmax has long, unaligned rows, which it reads three times, element by element.

    A warp keeps shorter rows in registers. A block keeps long rows in shared memory, but only if all rows are aligned;
    see host_softmax in ATen/native/cuda/SoftMax.cu.
    """
    scores = call.inputs[0] if call.inputs else None
    if scores is None or not scores.shape or "16" not in scores.dtype:
        return False
    return scores.shape[-1] > _LONGEST_IN_REGISTERS and bool(scores.shape[-1] % _MULTIPLE)


def _changes_order(call: OperatorCalls) -> bool:
    """Whether an input of the result's shape has its dimensions in another order in memory: its reads are strided."""
    if not call.outputs or len(call.outputs[0].shape) < 2 or not call.outputs[0].strides:
        return False
    result = call.outputs[0]
    return any(
        tensor.shape == result.shape
        and tensor.strides
        and _order(tensor.shape, tensor.strides) != _order(result.shape, result.strides)
        for tensor in call.inputs
    )


def _repeats_an_input(call: OperatorCalls) -> bool:
    """Whether a 16-bit (or narrower) result broadcasts a smaller input, such as a bias or a mask.

    PyTorch then computes the address of each element and cannot load vectors. Moving wider elements takes about as
    long as computing their addresses, so these are not slowed.
    """
    if not call.outputs or item_bytes(call.outputs[0]) > SHORT_ITEM:
        return False
    result = call.outputs[0].shape
    return any(tensor.shape == result for tensor in call.inputs) and any(
        tensor.shape != result and _is_repeated(tensor.shape, result) for tensor in call.inputs
    )


def _is_repeated(shape: tuple[int, ...], result: tuple[int, ...]) -> bool:
    sizes = zip(reversed(shape), reversed(result), strict=False)
    return len(shape) <= len(result) and all(size in (1, whole) for size, whole in sizes)


def _order(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    return sorted((place for place, size in enumerate(shape) if size > 1), key=lambda place: (-strides[place], place))


def _convolution(call: OperatorCalls, arithmetic: str) -> str:
    """The class of a convolution: by groups and channels and, on tensor cores, by layout."""
    images, weight = images_and_weight(call)
    count = groups(call)
    if count > 1 and weight.shape[1] == 1:
        kind = DEPTHWISE
    elif count > 1:
        kind = GROUPED
    else:
        kind = (CONVOLUTION, "convolution, one side under 32 channels", "convolution, both sides under 32 channels")[
            narrow_sides(call)
        ]
    if arithmetic not in TENSOR_CORES:
        if kind == GROUPED and arithmetic == "32" and not narrow_sides(call):
            kind = CONVOLUTION  # groups that fill tiles are as many convolutions
        return IMPLICIT if kind == CONVOLUTION and arithmetic == "32" and not has_winograd(call) else kind
    if count == 1 and arithmetic == "16" and has_odd_channels(call):
        kind = ODD_CHANNELS
    if not channels_last((images, weight)):
        return kind
    if kind == GROUPED and arithmetic == "16" and has_tiled_groups(call):
        kind = TILED_GROUPS
    elif kind == DEPTHWISE and is_large(weight):
        kind = LARGE_DEPTHWISE
    return f"{kind}, channels last"


def arithmetic_of(call: OperatorCalls, *, tf32: bool) -> str:
    """The arithmetic type of an operator, as `Gpu.flops` names it; `tf32`: whether the program allows TF32 for it."""
    types = [tensor.dtype for tensor in (*call.inputs, *call.outputs)]
    if base_name(call.name) == _WHOLE_PRODUCT:
        return "int8"
    if "complex128" in types:
        return "float64"
    floating = [dtype for dtype in types if "float" in dtype]
    dtype = floating[0] if floating else "float32"
    return "tf32" if dtype == "float32" and tf32 else dtype


def is_convolution(call: OperatorCalls) -> bool:
    """Whether an operator is a convolution or its backward pass."""
    return base_name(call.name) in _CONVOLUTIONS


def is_batched(call: OperatorCalls) -> bool:
    """Whether an operator multiplies many pairs of matrices."""
    return base_name(call.name) in _BATCHED


def misaligned(call: OperatorCalls) -> bool:
    """Whether a 16-bit product has rows whose length is no multiple of 8: tensor cores may then be unused."""
    matrices = [tensor for tensor in (*call.inputs, *call.outputs) if len(tensor.shape) >= 2]
    return base_name(call.name) in _PRODUCTS and any(
        "16" in tensor.dtype and any(stride % _MULTIPLE for stride in tensor.strides[-2:] if stride != 1)
        for tensor in matrices
    )
