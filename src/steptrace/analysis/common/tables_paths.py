"""The rows of the tables that follow work through the program: call tree, kernel sequences, critical path.

A column that names a table of the trace holds a row number of it; `node` and `parent` hold one of `call_tree`.
"""

from typing import Annotated

import msgspec

from steptrace.documents.base import Document, field
from steptrace.documents.column import key

_KIND = "`frame` (Python), `annotation` (`record_function`), `op` or `call` (into the GPU's runtime)."


class CallTreeRow(Document, frozen=True):
    """One event of a host thread in its place in the thread's call tree: a parent stands before its children, and the
    `size` rows from a row on are its subtree. Device times are sums over all streams."""

    kind: Annotated[str, key("", _KIND)]
    row: Annotated[int, key("", "Row of the kind's own table (`frames`, `annotations`, `ops`, `launches`).")]
    name: Annotated[str, field("Name as in that table.")]
    thread: Annotated[int, field("Row of `threads`.")]
    parent: Annotated[int | None, field("Row of this table: the event around it.")]
    depth: Annotated[int, field("Number of events around it.")]
    size: Annotated[int, field("Number of events in its subtree, itself included.")]
    ts: Annotated[int, field("Start.", "ns")]
    host_ns: Annotated[int, field("Length, cut off where the event around it ends.", "ns")]
    host_self_ns: Annotated[int, field("Length without the events directly inside.", "ns")]
    kernels: Annotated[int | None, field("GPU activities launched inside; null without a GPU.")]
    device_ns: Annotated[int | None, field("Their lengths, summed; null without a GPU.", "ns")]
    device_self_ns: Annotated[
        int | None, field("What of it no operator, label or frame further in launched; null without a GPU.", "ns")
    ]
    forward: Annotated[int | None, field("Row of this table: the forward operator of a backward one.")]


class KernelOrigin(Document, frozen=True):
    """Where in the program each GPU activity comes from, in the order of `kernels`."""

    kernel: Annotated[int, key("", "Row of `kernels`.")]
    node: Annotated[int | None, field("Row of `call_tree`: the call that launched it.")]
    op: Annotated[str | None, field("Innermost operator around the launch.")]
    label: Annotated[str | None, field("Innermost `record_function` label.")]
    phase: Annotated[str | None, field("`backward`, or the outermost label if that is a part of the step.")]
    file: Annotated[str | None, field("File of the first frame that is neither PyTorch's nor steptrace's.")]
    line: Annotated[int | None, field("Line in `file`; of backward work that of the forward operator.")]
    function: Annotated[str | None, field("Function that the line stands in.")]
    code: Annotated[str | None, field("Text of the line, where the file is known.")]


class CallName(Document, frozen=True):
    """All events of one kind and name; of those inside one of the same kind and name only the outer ones count, except
    in `calls` and the `self` times."""

    kind: Annotated[str, key("", _KIND)]
    name: Annotated[str, key("", "Name.")]
    calls: Annotated[int, field("Number of events.")]
    host_ns: Annotated[int, field("Their lengths, summed.", "ns")]
    host_self_ns: Annotated[int, field("... without the events directly inside.", "ns")]
    kernels: Annotated[int | None, field("GPU activities launched inside; null without a GPU.")]
    device_ns: Annotated[int | None, field("Their lengths, summed; null without a GPU.", "ns")]
    device_self_ns: Annotated[int | None, field("... launched by nothing further in.", "ns")]


class FlameRow(Document, frozen=True):
    """One box of a flame graph: all events with the same chain of names above them. Parents stand before children."""

    name: Annotated[str, field("Name shown.")]
    kind: Annotated[
        str,
        field(
            "`root`, `thread`, `frame`, `annotation`, `op`, `call`, `backward`, or a kernel's class: `compute`, "
            "`comm`, `memory`."
        ),
    ]
    parent: Annotated[int | None, field("Row of this table.")]
    depth: Annotated[int, field("Number of boxes below it.")]
    calls: Annotated[int, field("Events merged into it.")]
    ns: Annotated[int, field("Its width: host time, or the summed lengths of GPU activities.", "ns")]
    self_ns: Annotated[int, field("Width not covered by the boxes on it.", "ns")]


class SequenceRow(Document, frozen=True):
    """One sequence of GPU activities, in order of their start, that every call of a name counted here launched."""

    kind: Annotated[str, key("", "`op` or `annotation`.")]
    name: Annotated[str, key("", "The operator or label.")]
    length: Annotated[int, field("Number of activities in the sequence.")]
    count: Annotated[int, field("Number of calls that launched exactly this sequence.")]
    kernel_ns: Annotated[int, field("Lengths of the activities, summed over all calls.", "ns")]
    span_ns: Annotated[int, field("From the first one's start to the last one's end, summed over all calls.", "ns")]
    host_ns: Annotated[int, field("Lengths of the calls on the host, summed.", "ns")]
    kernels: Annotated[str, key("", "Names of the activities, one a line.")]


class PathPart(Document, frozen=True):
    """One part of a step's critical path. A step's parts follow each other without a gap from its start to its end, so
    that their lengths add up to the step's exactly."""

    step: Annotated[int | None, field("Row of `steps`; null where the trace has none and all of it counts.")]
    ts: Annotated[int, field("Start.", "ns")]
    dur: Annotated[int, field("Length.", "ns")]
    class_: Annotated[str, field("What the path is in: see `steptrace.analysis.critical_path.measure`.")] = (
        msgspec.field(name="class")
    )
    thread: Annotated[int | None, field("Row of `threads`, of a part on the host.")]
    kernel: Annotated[int | None, field("Row of `kernels`: the activity, or the one waited for or to start.")]


class PathOfStep(Document, frozen=True):
    """One class of the critical path of one step."""

    step: Annotated[int | None, key("", "Row of `steps`; null where the trace has none and all of it counts.")]
    class_: Annotated[str, key("", "See `steptrace.analysis.critical_path.measure`.")] = msgspec.field(name="class")
    span_ns: Annotated[int, field("Length of the step, and of its path.", "ns")]
    path_ns: Annotated[int, field("Length of the path's parts in the class; they add up to `span_ns`.", "ns")]
