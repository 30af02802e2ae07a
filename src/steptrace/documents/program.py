"""What is said of where in the program time goes, and of what the critical path is made."""

from typing import Annotated

import msgspec

from steptrace.documents.base import Document, field
from steptrace.documents.column import column, key


class LineTime(Document, frozen=True):
    """GPU time by source line."""

    file: Annotated[str, key("Line", "File.")]
    line: Annotated[int | None, key("", "Line; of backward work that of the forward operator.", local=True)]
    function: Annotated[str | None, key("", "Function.")]
    code: Annotated[str | None, field("Text of the line.")]
    kernels: Annotated[int, column("Activities", "GPU activities.", total=True)]
    device_ns: Annotated[int, column("GPU time", "Their lengths, summed.", "ns", total=True)]
    backward_ns: Annotated[int, column("Of it backward", "Of that, in backward.", "ns", total=True)]
    share: Annotated[float, column("Share", "Of all GPU time.", "share")]


class OperatorTime(Document, frozen=True):
    """GPU time by innermost operator."""

    op: Annotated[str | None, key("Operator", "Operator; null for work that none launched.")]
    kernels: Annotated[int, column("Activities", "GPU activities.", total=True)]
    device_ns: Annotated[int, column("GPU time", "Their lengths, summed.", "ns", total=True)]
    backward_ns: Annotated[int, column("Of it backward", "Of that, in backward.", "ns", total=True)]
    share: Annotated[float, column("Share", "Of all GPU time.", "share")]


class FlameBox(Document, frozen=True):
    """One box of a flame graph."""

    name: Annotated[str, field("Name shown.")]
    kind: Annotated[str, field("As the table `flame` has it.")]
    calls: Annotated[int, field("Events merged into it.")]
    ns: Annotated[int, field("Its width.", "ns")]
    parent: Annotated[int | None, field("Place in the list of the box below it.")]


class Flame(Document, frozen=True):
    """A flame graph without its narrowest boxes."""

    total_ns: Annotated[int, field("Width of the root.", "ns")]
    boxes_left_out: Annotated[int, field("Boxes too narrow to be shown.")]
    boxes: Annotated[tuple[FlameBox, ...], field("Parents before children.")]


class Program(Document, frozen=True):
    """Where in the program GPU and host time go."""

    by_line: Annotated[tuple[LineTime, ...] | None, field("By source line; null without a GPU.")]
    by_operator: Annotated[tuple[OperatorTime, ...] | None, field("By operator; null without a GPU.")]
    device_flame: Annotated[Flame | None, field("GPU time.")]
    host_flame: Annotated[Flame | None, field("Host time.")]


class ClassOfPath(Document, frozen=True):
    """One class of work on the steps' critical path; means over the steps."""

    class_: Annotated[str, key("Class", "Class, as the table `critical_steps` has them.")] = msgspec.field(name="class")
    path_ns: Annotated[int | None, column("On the path", "On the path.", "ns")]
    share: Annotated[float | None, column("Share", "Of the step.", "share")]
    left_ns: Annotated[
        int | None, column("Time without it", "What a step would take without all work of the class.", "ns")
    ]
    saved_ns: Annotated[int | None, column("Saved", "What that saves.", "ns")]


class CriticalPath(Document, frozen=True):
    """What the steps' time was spent on, one thing after the other."""

    steps: Annotated[int, field("Steps; 0: the whole trace.")]
    span_ns: Annotated[int, field("Mean length of a step.", "ns")]
    classes: Annotated[tuple[ClassOfPath, ...], field("By class.")]
