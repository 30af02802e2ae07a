"""Of a trace: critical path, GPU and host time by place in the program, recurring sequences, the picture of a step."""

from typing import Annotated

import msgspec

from steptrace.documents.base import Document, field


class ClassOfPath(Document, frozen=True):
    """One class of work on the steps' critical path; means over the steps."""

    class_: Annotated[str, field("Class, as the table `critical_steps` has them.")] = msgspec.field(name="class")
    path_ns: Annotated[int | None, field("On the path.", "ns")]
    share: Annotated[float | None, field("Of the step.")]
    left_ns: Annotated[int | None, field("What a step would take without all work of the class.", "ns")]
    saved_ns: Annotated[int | None, field("What that saves.", "ns")]


class CriticalPath(Document, frozen=True):
    """What the steps' time was spent on, one thing after the other."""

    steps: Annotated[int, field("Steps; 0: the whole trace.")]
    span_ns: Annotated[int, field("Mean length of a step.", "ns")]
    classes: Annotated[tuple[ClassOfPath, ...], field("By class.")]


class LineTime(Document, frozen=True):
    """GPU time by source line."""

    file: Annotated[str, field("File.")]
    line: Annotated[int | None, field("Line; of backward work that of the forward operator.")]
    function: Annotated[str | None, field("Function.")]
    code: Annotated[str | None, field("Text of the line.")]
    kernels: Annotated[int, field("GPU activities.")]
    device_ns: Annotated[int, field("Their lengths, summed.", "ns")]
    backward_ns: Annotated[int, field("Of that, in backward.", "ns")]
    share: Annotated[float, field("Of all GPU time.")]


class OperatorTime(Document, frozen=True):
    """GPU time by innermost operator."""

    op: Annotated[str | None, field("Operator; null for work that none launched.")]
    kernels: Annotated[int, field("GPU activities.")]
    device_ns: Annotated[int, field("Their lengths, summed.", "ns")]
    backward_ns: Annotated[int, field("Of that, in backward.", "ns")]
    share: Annotated[float, field("Of all GPU time.")]


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


class SequenceEntry(Document, frozen=True):
    """Neighbouring activities of one name in a sequence."""

    name: Annotated[str, field("Short name.")]
    times: Annotated[int, field("How often one after the other.")]


class Sequence(Document, frozen=True):
    """A sequence of GPU activities that recurs under one operator or label."""

    kind: Annotated[str, field("`op` or `annotation`.")]
    name: Annotated[str, field("Operator or label.")]
    length: Annotated[int, field("Activities in the sequence.")]
    count: Annotated[int, field("Calls that launched exactly this sequence.")]
    kernel_ns: Annotated[int, field("Lengths of the activities over all calls.", "ns")]
    span_ns: Annotated[int, field("First start to last end over all calls.", "ns")]
    host_ns: Annotated[int, field("Lengths of the calls on the host.", "ns")]
    kernels: Annotated[tuple[SequenceEntry, ...], field("The activities.")]
    left_out: Annotated[int, field("Entries beyond the first that are listed.")]


class Lane(Document, frozen=True):
    """One lane of the picture of a step: its boxes as columns."""

    kind: Annotated[str, field("`host`, `calls`, `syncs`, `idle` or `stream`.")]
    name: Annotated[str, field("What stands at it.")]
    start_ns: Annotated[tuple[int, ...], field("Start of each box within the time shown.", "ns")]
    dur_ns: Annotated[tuple[int, ...], field("Length of each box.", "ns")]
    level: Annotated[tuple[int, ...], field("Row of each box within the lane.")]
    events: Annotated[tuple[int, ...], field("Events that each box stands for.")]
    time_ns: Annotated[tuple[int, ...], field("Their lengths, summed.", "ns")]
    what: Annotated[tuple[int, ...], field("Place of each box's kind and name in `kinds` and `names`.")]


class Timeline(Document, frozen=True):
    """One step, the median one, as a picture shows it."""

    step: Annotated[int | None, field("The N of `ProfilerStep#N`.")]
    from_ns: Annotated[int, field("Start of the time shown.", "ns")]
    span_ns: Annotated[int, field("Its length.", "ns")]
    host_ns: Annotated[int | None, field("Length of the step on the host.", "ns")]
    events: Annotated[int, field("Events in that time.")]
    left_out: Annotated[tuple[str, ...], field("Lanes that are not drawn.")]
    kinds: Annotated[tuple[str, ...], field("Kinds of boxes.")]
    names: Annotated[tuple[str, ...], field("Names of boxes.")]
    lanes: Annotated[tuple[Lane, ...], field("From top to bottom.")]
