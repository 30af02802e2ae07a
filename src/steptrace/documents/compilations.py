"""What torch.compile did while a program was measured, as its probe notes it and run.json holds it.

Plain dataclasses: the probe runs in environments that have PyTorch alone.
"""

from dataclasses import dataclass
from typing import Final, Literal

#: The property that a failed guard checks. Its value has changed, so the code was compiled again:
#:
#: - `size`, `stride`, `rank`, `dtype`, `device`, `requires_grad`: a property of a tensor.
#: - `value`: a number, a string or a flag. `read_value`: a value that was read at a graph break. `module_value`: a
#:   number that is a module's attribute. `learning_rate`: that of an optimizer.
#: - `training`: a module's mode. `length`: of a list or dict. `type`: of a value. `object`: the identity of a
#:   function or object. `alias`: whether two arguments are the same tensor.
#: - `global_state`: PyTorch's global settings, such as gradients, autocast and the default number format.
#: - `other`: anything else.
GuardKind = Literal[
    "size",
    "stride",
    "rank",
    "dtype",
    "device",
    "requires_grad",
    "value",
    "read_value",
    "module_value",
    "learning_rate",
    "training",
    "length",
    "type",
    "object",
    "alias",
    "global_state",
    "other",
]


@dataclass(frozen=True, kw_only=True)
class CompiledFunction:
    """A function that Dynamo compiled, or the rest of one behind a graph break.

    Attributes:
        file: its file.
        line: the line that it begins at.
        function: its name.
        code: text of that line.
        compilations: how often it was compiled; once for each kind of arguments.
        compile_ns: the time of these compilations, with those of its backward passes.
        limit_reached: whether PyTorch's limit of recompilations was reached: other arguments then run uncompiled.
    """

    file: str
    line: int
    function: str
    code: str | None
    compilations: int
    compile_ns: int
    limit_reached: bool


@dataclass(frozen=True, kw_only=True)
class BrokenGraph:
    """A line at which Dynamo ended a graph, so that the program runs uncompiled until the next one begins.

    Attributes:
        file: the line's file.
        line: its number.
        function: the function that it is in.
        kind: Dynamo's own name of the reason.
        code: the line's text.
        hints: what PyTorch proposes instead, in its words.
        compilations: in how many compilations.
        by_pytorch: whether code of PyTorch asks for it, at a line that the program cannot change. Limits leave it out.
    """

    file: str
    line: int
    function: str
    kind: str
    code: str | None
    hints: tuple[str, ...]
    compilations: int
    by_pytorch: bool = False


@dataclass(frozen=True, kw_only=True)
class Recompiled:
    """A guard that failed, so that a function was compiled again.

    Attributes:
        file: file of the line that the guard is about; the function's file if PyTorch does not say the line.
        line: that line.
        function: the compiled function.
        code: text of that line.
        kind: the property that the guard checks.
        value: the object that has this property, as PyTorch writes it; of `global_state` the setting that has changed.
        compiled_file: file of the compiled function.
        compiled_line: the line that it begins at.
        dimension: the dimension of a tensor's size or stride, from 0; None for other kinds.
        guard: the first such guard as PyTorch writes it; None if the recompilation is predicted.
        recompilations: how often the function was compiled again for it; 0 if it failed at PyTorch's limit alone.
        before: of a predicted recompilation, the first value that the code was compiled for, as Python writes it.
        now: the value that it was compiled for again.
    """

    file: str
    line: int
    function: str
    code: str | None
    compiled_file: str
    compiled_line: int
    kind: GuardKind
    value: str
    dimension: int | None
    guard: str | None
    recompilations: int
    before: str | None = None
    now: str | None = None


@dataclass(frozen=True, kw_only=True)
class Compilations:
    """What torch.compile did in one process until its timed and profiled steps were over.

    Attributes:
        graphs: how many graphs it made.
        compile_ns: the time that compiling took, forward and backward passes together.
        functions: what was compiled, longest first.
        breaks: where graphs end early.
        recompilations: why functions were compiled again.
    """

    graphs: int
    compile_ns: int
    functions: tuple[CompiledFunction, ...]
    breaks: tuple[BrokenGraph, ...]
    recompilations: tuple[Recompiled, ...]


#: The most rows of each kind that are kept: a program that compiles without end must not fill its record.
MOST_ROWS: Final = 200
