"""The operators of a training step, as a prediction records them and an estimate reads them."""

from typing import Annotated

from steptrace.documents.base import Document, field


class TensorSpec(Document, frozen=True):
    """A tensor without its values."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Annotated[str, field("Type of an element as torch names it: `float32`, `bfloat16`, `int64`.")]


class OperatorCalls(Document, frozen=True):
    """All calls of one operator on a GPU with the same tensors from the same line, over the followed steps."""

    name: Annotated[str, field("Operator with its overload: `aten.addmm.default`.")]
    inputs: Annotated[tuple[TensorSpec, ...], field("GPU tensors among the arguments, lists flattened.")]
    outputs: Annotated[tuple[TensorSpec, ...], field("GPU tensors that it returns; views share their input's memory.")]
    is_view: Annotated[bool, field("Whether it only makes views and launches nothing.")]
    flop: Annotated[
        int, field("Floating-point operations of one call, by torch.utils.flop_counter; 0 without a formula.")
    ]
    calls: int
    phase: Annotated[str, field("`forward`, `backward`, `optimizer` or `other`.")]
    file: str | None
    line: int | None
