"""The operators of a training step, as a prediction records them and an estimate reads them.

Plain dataclasses: a prediction runs in environments that have PyTorch alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

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
        host: the tensor of the host that a copy is from or to, None of any other operator.
        arguments: of an operator whose launches depend on them; a tensor among them reads as True. Beside them stand
            `is_coalesced` of sparse tensors, of lists whether a launch's arguments take 4 KB (`arguments_of_4_kb`),
            of attention whether PyTorch 2.14 or later was followed (`since_2_14`), and of indexing how many indices lie
            on the host (`host_indices`) and whether the value does (`host_value`).
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
    host: TensorSpec | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
