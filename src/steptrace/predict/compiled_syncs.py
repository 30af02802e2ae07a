"""Which syncs compiling takes away.

Inductor folds small constants into kernels, and creates tensors of the CPU on the GPU instead, so the copies of them
are gone. An operation that breaks the graph (`.item()`, a size that depends on data) syncs as in uncompiled code."""

import dis
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.predict.memory import Marks
from steptrace.predict.operators import Overload, tensors_of
from steptrace.predict.places import running_frame
from steptrace.predict.tensor import is_virtual

#: A constant of at most so many values, in one dimension, is written into the kernel that reads it.
_INLINED: Final = 8
#: Operators that create a tensor without reading another one: Inductor creates it on the GPU.
_CONSTRUCTORS: Final = frozenset(
    f"aten::{name}"
    for name in (
        "arange", "empty", "empty_strided", "eye", "full", "full_like", "linspace", "logspace", "ones", "ones_like",
        "scalar_tensor", "tril_indices", "triu_indices", "zeros", "zeros_like",
    )
)  # fmt: skip
#: `torch.tensor` and the like make a tensor of their values by this operator, and copy it by one of those below.
_LITERAL: Final = "aten::lift_fresh"
_COPIED: Final = frozenset(("aten::_to_copy", "aten::copy_"))
#: A single value given as a tensor is an operand of the kernel, wherever it lies.
_SCALAR_OPERANDS: Final = frozenset(("aten::where", "aten::masked_fill", "aten::masked_fill_"))
_INDEXED: Final = frozenset(("aten::index", "aten::_unsafe_index"))
_ASSIGNED: Final = frozenset(("aten::index_put", "aten::index_put_", "aten::_index_put_impl_"))
#: Reads a value on the host.
_READ: Final = "aten::_local_scalar_dense"
#: Instructions that jump over what an `assert` statement raises, by version of Python, and those without effect.
_JUMPS: Final = (["POP_JUMP_IF_TRUE"], ["POP_JUMP_FORWARD_IF_TRUE"])
_NO_WORK: Final = ("CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "RESUME")
#: Whether an instruction belongs to an `assert` statement, by code object and instruction, with the object kept alive.
_asserted: Final[dict[tuple[int, int], tuple[bool, CodeType]]] = {}
#: Tensors on the CPU that compiled code has made of constants alone.
_made_of_constants: Final = Marks()
_literals: Final = Marks()


def release() -> None:
    """Forget the tensors of the program."""
    _made_of_constants.clear()
    _literals.clear()


def runs_on_host(overload: Overload, args: Sequence[Any], result: Any) -> None:
    """Note tensors that compiled code makes of constants on the CPU."""
    if not isinstance(result, Tensor):
        return
    if overload.name == _LITERAL:
        _literals.add(result)
        return
    sources = tensors_of(args)
    of_constants = (
        all(source in _made_of_constants for source in sources) if sources else overload.name in _CONSTRUCTORS
    )
    if of_constants or (overload.name in _CONSTRUCTORS and overload.name.endswith("_like")):
        _made_of_constants.add(result)


def takes_away(overload: Overload, kind: str, args: Sequence[Any]) -> bool:
    """Whether the sync of an operator, a copy of this kind, is gone once Inductor compiles it."""
    if overload.name == _READ:
        return _is_asserted(running_frame())
    if overload.name in _COPIED:
        source = args[0 if overload.copied is None else overload.copied]
        return not is_virtual(source) and _is_constant(source)
    if overload.name in _SCALAR_OPERANDS:
        return True
    if overload.name in _INDEXED:
        return kind == "h2d_copy" and all(
            _is_constant(index) for index in args[1] if index is not None and not is_virtual(index)
        )
    if overload.name in _ASSIGNED:
        indices = [index for index in args[1] if index is not None]
        # If a single value is assigned by a mask, that is a choice between two values.
        return len(indices) == 1 and indices[0].dtype == torch.bool and args[2].numel() == 1
    return False


def _is_asserted(frame: FrameType | None) -> bool:
    """Whether a frame's running instruction evaluates the condition of an `assert` statement.

    Dynamo makes an operator of such a check. It fails on the device, and the host does not wait for it. The message
    must be a constant.
    """
    if frame is None:
        return False
    key = id(frame.f_code), frame.f_lasti
    if key not in _asserted:
        instructions = [
            instruction for instruction in dis.get_instructions(frame.f_code) if instruction.opname not in _NO_WORK
        ]
        place = next(
            (k for k, instruction in enumerate(instructions) if instruction.offset == frame.f_lasti), len(instructions)
        )
        names = [instruction.opname for instruction in instructions[place : place + 5]]
        if names[:1] == ["TO_BOOL"]:
            names = names[1:]
        # The code is kept, so that its identity is not another one's later.
        _asserted[key] = names[:1] in _JUMPS and _raises_constant(names[1:]), frame.f_code
    return _asserted[key][0]


def _raises_constant(names: Sequence[str]) -> bool:
    """Whether instructions raise an AssertionError without a message, or with a constant one."""
    if names[:1] not in (["LOAD_ASSERTION_ERROR"], ["LOAD_COMMON_CONSTANT"]):
        return False
    return names[1:2] == ["RAISE_VARARGS"] or (names[1:2] == ["LOAD_CONST"] and names[2:3] in (["PRECALL"], ["CALL"]))


def _is_constant(tensor: Tensor) -> bool:
    """Whether a tensor on the CPU is made in code to compile, and no copy of it is left there."""
    return tensor in _made_of_constants or (tensor in _literals and tensor.dim() <= 1 and tensor.numel() <= _INLINED)
