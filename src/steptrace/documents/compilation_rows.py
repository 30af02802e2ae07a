"""What torch.compile did in the program before and while a trace was recorded, as rows of summary.json."""

from typing import Annotated

from steptrace.documents.base import Row, column, described, field, key, place_key
from steptrace.documents.compilations import GuardKind


@described(
    """A function that torch.compile compiled, or the rest of one behind a graph break.

    From the record beside the trace: the compilations until the trace's end. Their times are in no step time, unless
    the step itself compiles.
    """
)
class CompiledFunctionRow(Row, frozen=True):
    file: Annotated[str | None, place_key("Function", "File of the function.")]
    line: Annotated[int | None, key("", "The line that it begins at.", local=True)]
    function: Annotated[str | None, key("", "Its name.")]
    code: Annotated[str | None, field("Text of the line.", kind="first")]
    compilations: Annotated[
        int, column("Compilations", "How often it was compiled: once for each kind of arguments.", kind="max")
    ]
    compile_ns: Annotated[
        int, column("Compiling", "Time of these compilations and of its backward passes'.", kind="mean")
    ]
    limit_reached: Annotated[
        bool,
        column("Limit reached", "Whether PyTorch stopped compiling it again, so that other arguments run uncompiled."),
    ]


@described(
    """A line at which torch.compile ended a graph.

    The program runs uncompiled from there until the next graph begins. From the record beside the trace.
    """
)
class GraphBreakRow(Row, frozen=True):
    file: Annotated[str | None, place_key("Line", "File of the line.")]
    line: Annotated[int | None, key("", "Its number.", local=True)]
    function: Annotated[str | None, key("", "Function that the line stands in.")]
    kind: Annotated[str, key("Reason", "Dynamo's own name of the reason.")]
    code: Annotated[str | None, field("Text of the line.", kind="first")]
    compilations: Annotated[int, column("Compilations", "In how many compilations.", kind="max")]
    hints: Annotated[str | None, field("What PyTorch proposes instead, in its words.", kind="first")]
    by_pytorch: Annotated[
        bool, column("PyTorch's own", "Whether code of PyTorch asks for it, at a line that the program cannot change.")
    ] = False


@described(
    """A guard of a compiled function that failed, so that torch.compile compiled the function again.

    From the record beside the trace.
    """
)
class RecompilationRow(Row, frozen=True):
    file: Annotated[
        str | None, place_key("Line", "File of the line that the guard is about, or of the compiled function.")
    ]
    line: Annotated[int | None, key("", "That line.", local=True)]
    function: Annotated[str | None, key("", "The compiled function.")]
    compiled_file: Annotated[str | None, key("", "File of the compiled function.")]
    compiled_line: Annotated[int | None, key("", "The line that the compiled function begins at.", local=True)]
    kind: Annotated[GuardKind, key("Changed", "What the guard holds, as a code.")]
    value: Annotated[str, key("Of", "What it looks at, as PyTorch writes it.")]
    dimension: Annotated[int | None, key("Dimension", "Of a tensor's size or stride: which one, from 0.")]
    code: Annotated[str | None, field("Text of the line.", kind="first")]
    guard: Annotated[str, column("Guard", "The first guard that failed, as PyTorch writes it.")]
    recompilations: Annotated[int, column("Recompilations", "How often it has failed.", kind="max")]
