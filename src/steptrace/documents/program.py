"""Where in the program time goes, and what the critical path is made of."""

from typing import Annotated

import msgspec

from steptrace.documents.base import Document, Row, column, described, field, key, place_key


@described(
    """GPU time of one line: the first Python frame around a launch that is neither PyTorch's nor steptrace's.

    A trace knows the line of a function's def; runs recorded by steptrace know the line that ran.
    """
)
class LineTime(Document, frozen=True):
    file: Annotated[str, place_key("Line", "File.")]
    line: Annotated[int | None, key("", "Line; for backward work the line of the forward operator.", local=True)]
    function: Annotated[str | None, key("", "Function.")]
    code: Annotated[str | None, field("Text of the line.")]
    kernels: Annotated[int, column("Activities", "GPU activities.", kind="total", plain=True)]
    device_ns: Annotated[
        int, column("GPU time", "Lengths of the activities launched inside, summed over streams.", kind="total")
    ]
    backward_ns: Annotated[
        int, column("Of it backward", "Of that, backward work, counted at its forward operator.", kind="total")
    ]
    share: Annotated[float, column("Share of GPU time", "Of all GPU time.", "share", kind="share")]


@described("The calls of one Python function or module on threads that train, with all that they call in turn.")
class FunctionTime(Document, frozen=True):
    function: Annotated[str, key("Function or module", "Its name, with file and line; PyTorch's own are left out.")]
    calls: Annotated[int, column("Calls", "Calls, without those within another call of the same.", kind="total")]
    host_ns: Annotated[int, column("Host time", "Their length on the host.", kind="total")]
    device_ns: Annotated[
        int | None,
        column(
            "GPU time launched",
            "Lengths of the GPU activities launched inside, without the backward pass's.",
            kind="total",
        ),
    ]


@described("Where in the program GPU and host time go.")
class Program(Document, frozen=True):
    by_line: Annotated[tuple[LineTime, ...] | None, field("By source line; null where launches are unknown.")]
    functions: Annotated[tuple[FunctionTime, ...], field("By function and module, the most host time first.")]
    stacks: Annotated[bool, field("Whether Python frames were recorded.")]

    @property
    def is_empty(self) -> bool:
        """Whether neither lines nor functions are known."""
        return not self.by_line and not self.functions


@described(
    """One class of work on the critical path, a mean over the steps.

    The path leads from the step's end back to its start: from each event to the last one that it had to wait for. Its
    parts follow each other without a gap and add up to the step exactly.
    """
)
class ClassOfPath(Row, frozen=True):
    class_: Annotated[str, key("Class", "What the path is in, as in the table `critical_path`.")] = msgspec.field(
        name="class"
    )
    path_ns: Annotated[int | None, column("On the path", "On the path.", kind="sum", plain=True)]
    share: Annotated[float | None, column("Share", "Of the step.", "share", kind="share", plain=True)]


@described("What the steps' time was spent on, one thing after the other.")
class CriticalPath(Document, frozen=True):
    steps: Annotated[int, field("Steps; 0: the whole trace.", kind="sum")]
    span_ns: Annotated[int, field("Mean length of a step.", kind="mean")]
    classes: Annotated[tuple[ClassOfPath, ...], field("By class.")]
