"""The tables of the metrics that follow GPU work from its launch: launches, queues, copies, annotations.

A column that names a table of the trace holds a row number of it.
"""

from steptrace.documents.rows import Copy, Label, LaunchCall, Queue, table_of
from steptrace.schema.table import Column, Table

_DEVICE = Column("device", "int64", "GPU.")
_STREAM = Column("stream", "int64", "Stream.")

LAUNCH_TIMES = Table(
    name="launch_times",
    doc="One host call and the work it put on one GPU: one activity, or for a graph many. "
    "`queueing_ns`, `dependency_ns` and `latency_ns` add up to `delay_ns`.",
    columns=(
        Column("launch", "int64", "Row of `launches`."),
        Column("call", "string", "Name of the call."),
        Column("kind", "string", "`kernel`, `graph`, `copy` or `set`, by what the call launched."),
        Column("op", "string", "The innermost operator around the call.", nullable=True),
        Column("step", "int64", "Row of `steps`.", nullable=True),
        _DEVICE,
        Column("stream", "int64", "Stream of its first activity."),
        Column("activities", "int64", "How many activities it caused."),
        Column("host_ns", "int64", "Length of the call.", "ns"),
        Column("device_ns", "int64", "Time in which its work ran: the union of its activities.", "ns"),
        Column("delay_ns", "int64", "From the call's end to its work's start; 0 if that came first.", "ns"),
        Column("queueing_ns", "int64", "The part of the delay with earlier work of the stream still to finish.", "ns"),
        Column("dependency_ns", "int64", "The rest, if the stream had been told to wait for an event.", "ns"),
        Column("latency_ns", "int64", "The rest, if not: the stream was free, the work had not begun.", "ns"),
    ),
    key=("launch", "device"),
)
LAUNCH_CALLS = table_of("launch_calls", LaunchCall, "call", "kind")

QUEUE_LENGTHS = Table(
    name="queue_lengths",
    doc="How much launched work of one stream has not begun, from this instant to the stream's next row.",
    columns=(
        _DEVICE,
        _STREAM,
        Column("ts", "int64", "Instant.", "ns"),
        Column("length", "int64", "Activities launched and not begun."),
        Column("launches", "int64", "Launches with no activity begun: as `length`, a graph counting once."),
    ),
    key=("device", "stream", "ts"),
)
QUEUES = table_of("queues", Queue, "device", "stream")

COPY_RATES = Table(
    name="copy_rates",
    doc="The rate at which one kind of copy moves bytes, from this instant to the kind's next row.",
    columns=(
        _DEVICE,
        Column("kind", "string", "The copy as recorded, such as `Memcpy HtoD (Pinned -> Device)`, or `Memset`."),
        Column("ts", "int64", "Instant.", "ns"),
        Column("running", "int64", "Copies under way."),
        Column("bytes_per_second", "float64", "Sum of their rates, each its bytes over its length.", "B/s"),
    ),
    key=("device", "kind", "ts"),
)
COPIES = table_of("copies", Copy, "device", "kind")
ANNOTATION_TIMES = table_of("annotation_times", Label, "label")
