"""The operators of a training step, as a prediction records them and an estimate reads them.

Plain dataclasses: a prediction runs in environments that have PyTorch alone.
"""

from dataclasses import dataclass
from typing import Final

#: The name of compiled code among what a prediction could not judge: it is followed as if it were not compiled.
COMPILED: Final = "torch.compile"


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """A tensor without its values; `dtype` is an element's type as torch names it (`float32`, `bfloat16`, `int64`).

    A sparse tensor has a shape and no strides, and its indices and values stand behind it.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class OperatorCalls:
    """All calls of one operator on a GPU with the same tensors from the same line, over the followed steps.

    Attributes:
        name: operator with its overload, such as `aten.addmm.default`.
        inputs: GPU tensors among the arguments, lists flattened.
        outputs: GPU tensors that it returns.
        is_view: whether it only makes views and launches nothing.
        flop: floating-point operations of one call by `torch.utils.flop_counter`; 0 without a formula.
        calls: how many there were.
        phase: `data`, `forward`, `backward`, `optimizer` or `other`.
        file: the program's file, None where no line of the program is on the stack.
        line: its line.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    is_view: bool
    flop: int
    calls: int
    phase: str
    file: str | None
    line: int | None
