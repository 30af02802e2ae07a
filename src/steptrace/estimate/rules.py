"""Which class of kernels an operator belongs to, by its name, its arithmetic and the layout of its tensors.

A class is what kernels were measured of together, such as `product` or `batch norm backward`; constants.toml says how
fast the kernels of each are.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from steptrace.documents.estimate import OperatorCalls
from steptrace.estimate.cudnn import groups, images_and_weight, narrow_sides
from steptrace.estimate.layout import channels_last, has_gaps

#: Names of operators by class, and how many kernels some launch.
OPERATORS: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("operators.toml").read_text(encoding="utf-8"))
_PRODUCTS: Final = frozenset(OPERATORS["product"]["names"])
_BATCHED: Final = frozenset(("bmm", "baddbmm", "addbmm"))
_CONVOLUTIONS: Final = frozenset(OPERATORS["convolution"]["names"])
_ATTENTION: Final = tuple(OPERATORS["attention"]["starts"])
_NORMS: Final = tuple(OPERATORS["normalisation"]["parts"])
_CLASS: Final[Mapping[str, str]] = {name: kind for kind, names in OPERATORS["classes"].items() for name in names}
_STARTS: Final[tuple[tuple[str, str], ...]] = tuple(
    (start, kind) for kind, starts in OPERATORS["class_starts"].items() for start in starts
)
#: Operators that read a part of their first tensor, as much as they return.
LOOKED_UP: Final = frozenset(OPERATORS["looked_up"]["names"])

#: Number formats of arithmetic, by the type of the elements.
FORMATS: Final[Mapping[str, str]] = {
    "float64": "32",
    "float32": "32",
    "tf32": "tf32",
    "float16": "16",
    "bfloat16": "16",
    "float8_e4m3fn": "8",
    "float8_e5m2": "8",
}
#: Formats that tensor cores compute in.
TENSOR_CORES: Final = frozenset(("tf32", "16", "8"))
#: Namespaces of operators that communicate.
_COLLECTIVES: Final = ("c10d", "_c10d_functional", "symm_mem")
#: PyTorch's own operators that copy parameters and gradients for its collectives.
_COPIES: Final = "fsdp."
COLLECTIVE: Final = "collective"
CUSTOM: Final = "custom operator"
HOST_COPY: Final = "copy from or to the host"
UNCOVERED: Final = "not covered"
#: Classes without a rule: nothing says how long their kernels take.
WITHOUT_RULE: Final = frozenset((CUSTOM, UNCOVERED))
RECURRENT: Final = "recurrent layer"
REDUCTION: Final = "reduction"
STRIDED: Final = "strided elementwise"
ELEMENTWISE: Final = "elementwise"
ATTENTION: Final = "attention"
ATTENTION_BACKWARD: Final = "attention backward"
MISALIGNED: Final = "product, rows not a multiple of 8"
SORT: Final = "sort"
ONE_BLOCK: Final = "loss in one block"
CONVOLUTION: Final = "convolution"
DEPTHWISE: Final = "depthwise convolution"
_MULTIPLE: Final = 8


def base_name(operator: str) -> str:
    """`addmm` of `aten.addmm.default`."""
    parts = operator.split(".")
    return parts[1] if len(parts) > 1 else operator


def kind_of(call: OperatorCalls, arithmetic: str) -> str:
    """The class of an operator that launches something and computes in a format, see `arithmetic_of`."""
    name = base_name(call.name)
    if call.name.startswith(_COLLECTIVES):
        return COLLECTIVE
    if call.name.startswith(_COPIES):
        return ELEMENTWISE
    if not call.name.startswith(("aten.", "prims.")):
        return CUSTOM
    if call.host is not None or name == "_local_scalar_dense":
        return HOST_COPY
    backward = " backward" if "backward" in name else ""
    if name in _CONVOLUTIONS:
        return f"{_convolution(call, arithmetic)}{backward}"
    if name.startswith(_ATTENTION):
        return ATTENTION + backward
    if name in _PRODUCTS:
        return MISALIGNED if misaligned(call) else "batched product" if name in _BATCHED else "product"
    if name.startswith("_cudnn_rnn"):
        return RECURRENT
    if name in _CLASS:
        return _CLASS[name]
    by_start = next((kind for start, kind in _STARTS if name.startswith(start)), None)
    if by_start is not None:
        return by_start
    norm = next((what for part, what in zip(_NORMS, _NORM_CLASSES, strict=True) if part in name), None)
    if norm == "batch norm" and not backward and not call.arguments.get("training", True):
        return "batch norm in evaluation"
    if norm is not None:
        images = call.inputs[int(bool(backward)) : int(bool(backward)) + 1]
        last = norm == "batch norm" and channels_last(images)
        return f"{norm}, channels last{backward}" if last else norm + backward
    if any(part in name for part in OPERATORS["reduction"]["parts"]):
        return REDUCTION
    return STRIDED if any(map(has_gaps, call.inputs)) or _changes_order(call) else ELEMENTWISE


_NORM_CLASSES: Final[tuple[str, ...]] = tuple(OPERATORS["normalisation"]["classes"])


def _changes_order(call: OperatorCalls) -> bool:
    """Whether the result lies in another order than the largest input: neighbours are read far apart."""
    if not call.outputs or len(call.outputs[0].shape) < 2 or not call.outputs[0].strides:
        return False
    made = call.outputs[0]
    return any(
        one.shape == made.shape and one.strides and _order(one.shape, one.strides) != _order(made.shape, made.strides)
        for one in call.inputs
    )


def _order(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    return sorted((place for place, size in enumerate(shape) if size > 1), key=lambda place: (-strides[place], place))


def _convolution(call: OperatorCalls, arithmetic: str) -> str:
    """The class of a convolution by its groups and channels, and on tensor cores by its layout."""
    images, weight = images_and_weight(call)
    count = groups(call)
    if count > 1 and weight.shape[1] == 1:
        kind = DEPTHWISE
    elif count > 1:
        kind = "grouped convolution"
    else:
        kind = (CONVOLUTION, "convolution, one side under 32 channels", "convolution, both sides under 32 channels")[
            narrow_sides(call)
        ]
    if arithmetic not in TENSOR_CORES:
        return kind
    return f"{kind}, channels last" if channels_last((images, weight)) else kind


def arithmetic_of(call: OperatorCalls, *, tf32: bool) -> str:
    """The type in which an operator computes, as `Gpu.flops` names it; `tf32`: the program allows it there."""
    floating = [one.dtype for one in (*call.inputs, *call.outputs) if "float" in one.dtype]
    dtype = floating[0] if floating else "float32"
    return "tf32" if dtype == "float32" and tf32 else dtype


def is_convolution(call: OperatorCalls) -> bool:
    """Whether an operator is a convolution or its backward pass."""
    return base_name(call.name) in _CONVOLUTIONS


def misaligned(call: OperatorCalls) -> bool:
    """Whether rows of a 16-bit product's matrices are no multiple of 8 long: tensor cores may then be unused."""
    matrices = [one for one in (*call.inputs, *call.outputs) if len(one.shape) >= 2]
    return base_name(call.name) in _PRODUCTS and any(
        "16" in one.dtype and any(stride % _MULTIPLE for stride in one.strides[-2:] if stride != 1) for one in matrices
    )
