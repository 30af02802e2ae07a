"""What Dynamo and Inductor say of compiled code while they follow it: functions, graphs, kernels and graph breaks."""

import importlib
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest import mock

from steptrace.documents.compiled import GraphBreak
from steptrace.documents.estimate import OperatorCalls
from steptrace.engine.compilations import broken_by_pytorch, hints_of
from steptrace.engine.frames import trace_file_name
from steptrace.predict.failed_guards import Failed
from steptrace.predict.guards import DynamoFrame
from steptrace.predict.places import place_of_stack
from steptrace.torch_names import owner_of

#: Makes the check of all that a compiled function depends on.
_GUARDS: Final = "torch._dynamo.guards.CheckFunctionManager.__init__"
#: Folders of this package that are not the program's: what Dynamo says of them is not about it.
OURS: Final = tuple(
    f"{Path(__file__).parents[1] / name}/" for name in ("predict", "engine", "launch", "inductor", "callbacks")
)


@dataclass
class TracedCall:
    """What Dynamo says of a call that it has followed, beside its kernels.

    Attributes:
        frames: the functions that it compiles, in order, each with what it depends on.
        compiled: by place among them, those that no earlier call has compiled for the same sizes and values, with the
            guard that has failed; None of those that are compiled for the first time.
        code_state: which sizes and numbers have varied so far, in PyTorch's own form; None for none.
        specialized: Dynamo's names of numbers that cannot be dynamic, as some operator takes them as constants.
        error: PyTorch's message on the first graph break.
        number: how many calls of this code were followed before.
        ends: PyTorch's error that ends the program, by the name of its class and its message; None if none does.
    """

    frames: list[DynamoFrame] = field(default_factory=list)
    compiled: dict[int, Failed | None] = field(default_factory=dict)
    code_state: Any = None
    specialized: frozenset[str] = frozenset()
    error: str | None = None
    number: int = 0
    ends: tuple[str, str] | None = None


@dataclass
class Notes:
    """The results of Dynamo and Inductor so far; backward passes are in the order of their forward passes."""

    forward: list[list[OperatorCalls]] = field(default_factory=list)
    backward: list[list[OperatorCalls]] = field(default_factory=list)
    breaks: list[GraphBreak] = field(default_factory=list)
    graphs: int = 0
    #: Of them, those that an earlier call has made.
    graphs_known: int = 0
    kept_bytes: int = 0
    is_lowering: bool = False
    #: The share of the blocks that the mask of a `flex_attention` leaves.
    mask_share: float = 1.0
    trace: TracedCall = field(default_factory=TracedCall)
    #: How many conditions on tensors the code has read between two graphs, and those that do not hold.
    conditions: int = 0
    fails: frozenset[int] = frozenset()
    #: Whether the program's own code has raised an error.
    raised_by_program: bool = False


@contextmanager
def watching_guards(noted: Callable[[types.CodeType, Any], None]) -> Iterator[None]:
    """Call a function for each function that Dynamo compiles, with its code and Dynamo's `OutputGraph`."""
    manager: Any = owner_of(_GUARDS)
    begin = manager.__init__

    def __init__(self: Any, code: types.CodeType, output: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        noted(code, output)
        begin(self, code, output, *args, **kwargs)

    with mock.patch.object(manager, "__init__", __init__):
        yield


@contextmanager
def watching_breaks(notes: Notes) -> Iterator[None]:
    """Note each graph break in the program's code, with its line."""
    translator: Any = importlib.import_module("torch._dynamo.symbolic_convert").InstructionTranslatorBase
    log = translator.log_graph_break

    def logged(self: Any, code_options: Any, reason: Any = "", exc: Any = None, *args: Any, **kwargs: Any) -> Any:
        stack = getattr(exc, "real_stack", None) or (self.frame_summary and [self.frame_summary()])
        if stack and (stack[0].filename.startswith(OURS) or stack[-1].filename.startswith(OURS)):
            return log(self, code_options, reason, exc, *args, **kwargs)
        note_break(notes, stack or [], exc)
        return log(self, code_options, reason, exc, *args, **kwargs)

    with mock.patch.object(translator, "log_graph_break", logged):
        yield


def note_break(notes: Notes, stack: Sequence[Any], error: Any) -> None:
    """Note a graph break.

    Args:
        notes: gets the break.
        stack: the frames that Dynamo follows, the outermost first.
        error: Dynamo's own.
    """
    file, line, code = place_of_stack(stack)
    kind = getattr(error, "gb_type", None) or type(error).__name__
    notes.trace.error = notes.trace.error or str(error)
    by_pytorch = broken_by_pytorch(kind, (frame.filename for frame in stack))
    if file is None and by_pytorch:
        innermost = stack[-1]
        file = innermost.filename
        line = innermost.lineno
        code = innermost.line
    notes.breaks.append(
        GraphBreak(
            kind=kind,
            file=file and trace_file_name(file),
            line=line,
            code=code,
            by_pytorch=by_pytorch,
            hints=" ".join(hints_of(error)) or None,
        )
    )
