"""The tables of the metrics that follow GPU work from its launch: launches, queues, copies, annotations.

A column that names a table of the trace holds a row number of it.
"""

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

LAUNCH_CALLS = Table(
    name="launch_calls",
    doc="The launches of one GPU by one call.",
    columns=(
        Column("call", "string", "Name of the call."),
        Column("kind", "string", "`kernel`, `graph`, `copy` or `set`."),
        Column("count", "int64", "Launches."),
        Column("activities", "int64", "GPU activities they caused."),
        Column("host_ns", "int64", "Summed length of the calls.", "ns"),
        Column("host_median_ns", "float64", "Median length of a call.", "ns"),
        Column("device_ns", "int64", "Summed time of their work.", "ns"),
        Column("device_median_ns", "float64", "Median time of a launch's work.", "ns"),
        Column("delay_ns", "int64", "Summed delay.", "ns"),
        Column("queueing_ns", "int64", "Summed queueing.", "ns"),
        Column("dependency_ns", "int64", "Summed waiting for events.", "ns"),
        Column("latency_ns", "int64", "Summed launch latency.", "ns"),
        Column("latency_median_ns", "float64", "Median launch latency.", "ns"),
        Column("short_kernels", "int64", "Launches whose work takes less time than the call."),
        Column("slow_launches", "int64", "Calls that took more than 50 us."),
        Column("excess_delays", "int64", "Launches with more than 100 us of launch latency."),
    ),
    key=("call", "kind"),
)

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

QUEUES = Table(
    name="queues",
    doc="The queue of one stream from its first launch to its last start of an activity, weighted by time.",
    columns=(
        _DEVICE,
        _STREAM,
        Column("activities", "int64", "Activities with a known launch: each enters and leaves the queue once."),
        Column("unlinked", "int64", "Activities without a known launch: left out."),
        Column("span_ns", "int64", "Length of the series.", "ns"),
        Column("mean", "float64", "Mean length over time; null for a series without length.", nullable=True),
        Column("median", "int64", "Length that the queue does not exceed half of the time.", nullable=True),
        Column("p95", "int64", "Length that it does not exceed 95 % of the time.", nullable=True),
        Column("max", "int64", "Longest."),
        Column("empty_ns", "int64", "Time with nothing queued: the GPU depends on the host's next launch.", "ns"),
        Column(
            "full_ns", "int64", "Time with 1,024 launches or more queued, where the host's next launch blocks.", "ns"
        ),
    ),
    key=("device", "stream"),
)

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

COPIES = Table(
    name="copies",
    doc="The copies (or sets) of one kind on one GPU; rates are weighted by time while any of them runs.",
    columns=(
        _DEVICE,
        Column("kind", "string", "The copy as recorded, or `Memset`."),
        Column("count", "int64", "How many."),
        Column("unsized", "int64", "Of these, how many say no bytes or took no time: no part of the rates."),
        Column("bytes", "int64", "Bytes moved, of those that say; null where none does.", "B", nullable=True),
        Column("ns", "int64", "Time with any of them running, each instant once.", "ns"),
        Column(
            "mean_bytes_per_second",
            "float64",
            "Rate over the time that any that says its bytes ran.",
            "B/s",
            nullable=True,
        ),
        Column("median_bytes_per_second", "float64", "Rate not exceeded half of that time.", "B/s", nullable=True),
        Column("max_bytes_per_second", "float64", "Highest rate at any instant.", "B/s", nullable=True),
        Column("median_bytes", "float64", "Median size of one.", "B", nullable=True),
    ),
    key=("device", "kind"),
)

ANNOTATION_TIMES = Table(
    name="annotation_times",
    doc="All user annotations of one label, with the GPU's time that belongs to them.",
    columns=(
        Column("label", "string", "The label; steps (`ProfilerStep#N`) are none."),
        Column("count", "int64", "How many, those inside one of their own label included."),
        Column("host_ns", "int64", "Host time in them, each instant of a thread once.", "ns"),
        Column("host_self_ns", "int64", "Of that, outside other annotations within them.", "ns"),
        Column("kernels", "int64", "GPU activities launched in them, annotations within included.", nullable=True),
        Column("device_ns", "int64", "Time the GPU was busy with these, each instant once.", "ns", nullable=True),
        Column("device_self_ns", "int64", "Of their work without annotations within.", "ns", nullable=True),
    ),
    key=("label",),
)
