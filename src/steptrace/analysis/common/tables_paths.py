"""The tables of the metrics that follow work through the program: call tree, kernel sequences, critical path.

A column that names a table of the trace holds a row number of it; `node` and `parent` hold one of `call_tree`.
"""

from steptrace.schema.table import Column, Table

_KIND = "`frame` (Python), `annotation` (`record_function`), `op` or `call` (into the GPU's runtime)."

CALL_TREE = Table(
    "call_tree",
    "One event of a host thread in its place in the thread's call tree: a parent stands before its children, and "
    "the `size` rows from a row on are its subtree. Device times are sums over all streams.",
    Column("kind", "string", _KIND),
    Column("row", "int64", "Row of the kind's own table (`frames`, `annotations`, `ops`, `launches`)."),
    Column("name", "string", "Name as in that table."),
    Column("thread", "int64", "Row of `threads`."),
    Column("parent", "int64", "Row of this table: the event around it.", nullable=True),
    Column("depth", "int64", "Number of events around it."),
    Column("size", "int64", "Number of events in its subtree, itself included."),
    Column("ts", "int64", "Start.", "ns"),
    Column("host_ns", "int64", "Length, cut off where the event around it ends.", "ns"),
    Column("host_self_ns", "int64", "Length without the events directly inside.", "ns"),
    Column("kernels", "int64", "GPU activities launched inside; null without a GPU.", nullable=True),
    Column("device_ns", "int64", "Their lengths, summed; null without a GPU.", "ns", nullable=True),
    Column(
        "device_self_ns",
        "int64",
        "What of it no operator, label or frame further in launched; null without a GPU.",
        "ns",
        nullable=True,
    ),
    Column("forward", "int64", "Row of this table: the forward operator of a backward one.", nullable=True),
    key=("kind", "row"),
)

KERNEL_ORIGINS = Table(
    "kernel_origins",
    "Where in the program each GPU activity comes from, in the order of `kernels`.",
    Column("kernel", "int64", "Row of `kernels`."),
    Column("node", "int64", "Row of `call_tree`: the call that launched it.", nullable=True),
    Column("op", "string", "Innermost operator around the launch.", nullable=True),
    Column("label", "string", "Innermost `record_function` label.", nullable=True),
    Column("phase", "string", "`backward`, or the outermost label if that is a part of the step.", nullable=True),
    Column("file", "string", "File of the first frame that is neither PyTorch's nor steptrace's.", nullable=True),
    Column("line", "int64", "Line in `file`; of backward work that of the forward operator.", nullable=True),
    Column("function", "string", "Function that the line stands in.", nullable=True),
    Column("code", "string", "Text of the line, where the file is known.", nullable=True),
    key=("kernel",),
)

CALL_NAMES = Table(
    "call_names",
    "All events of one kind and name; of those inside one of the same kind and name only the outer ones count, "
    "except in `calls` and the `self` times.",
    Column("kind", "string", _KIND),
    Column("name", "string", "Name."),
    Column("calls", "int64", "Number of events."),
    Column("host_ns", "int64", "Their lengths, summed.", "ns"),
    Column("host_self_ns", "int64", "... without the events directly inside.", "ns"),
    Column("kernels", "int64", "GPU activities launched inside; null without a GPU.", nullable=True),
    Column("device_ns", "int64", "Their lengths, summed; null without a GPU.", "ns", nullable=True),
    Column("device_self_ns", "int64", "... launched by nothing further in.", "ns", nullable=True),
    key=("kind", "name"),
)

FLAME = Table(
    "flame",
    "One box of a flame graph: all events with the same chain of names above them. Parents stand before children.",
    Column("name", "string", "Name shown."),
    Column("kind", "string", "`root`, `thread`, `frame`, `annotation`, `op`, `call`, `backward`, or a kernel's "
           "class: `compute`, `comm`, `memory`."),
    Column("parent", "int64", "Row of this table.", nullable=True),
    Column("depth", "int64", "Number of boxes below it."),
    Column("calls", "int64", "Events merged into it."),
    Column("ns", "int64", "Its width: host time, or the summed lengths of GPU activities.", "ns"),
    Column("self_ns", "int64", "Width not covered by the boxes on it.", "ns"),
)  # fmt: skip

SEQUENCES = Table(
    "sequences",
    "One sequence of GPU activities, in order of their start, that every call of a name counted here launched.",
    Column("kind", "string", "`op` or `annotation`."),
    Column("name", "string", "The operator or label."),
    Column("length", "int64", "Number of activities in the sequence."),
    Column("count", "int64", "Number of calls that launched exactly this sequence."),
    Column("kernel_ns", "int64", "Lengths of the activities, summed over all calls.", "ns"),
    Column("span_ns", "int64", "From the first one's start to the last one's end, summed over all calls.", "ns"),
    Column("host_ns", "int64", "Lengths of the calls on the host, summed.", "ns"),
    Column("kernels", "string", "Names of the activities, one a line."),
    key=("kind", "name", "kernels"),
)

CRITICAL_PATH = Table(
    "critical_path",
    "One part of a step's critical path. A step's parts follow each other without a gap from its start to its "
    "end, so that their lengths add up to the step's exactly.",
    Column("step", "int64", "Row of `steps`; null where the trace has none and all of it counts.", nullable=True),
    Column("ts", "int64", "Start.", "ns"),
    Column("dur", "int64", "Length.", "ns"),
    Column("class", "string", "What the path is in: see `steptrace.analysis.critical_path.measure`."),
    Column("thread", "int64", "Row of `threads`, of a part on the host.", nullable=True),
    Column("kernel", "int64", "Row of `kernels`: the activity, or the one waited for or to start.", nullable=True),
)

CRITICAL_STEPS = Table(
    "critical_steps",
    "One class of the critical path of one step.",
    Column("step", "int64", "Row of `steps`; null where the trace has none and all of it counts.", nullable=True),
    Column("class", "string", "See `steptrace.analysis.critical_path.measure`."),
    Column("span_ns", "int64", "Length of the step, and of its path.", "ns"),
    Column("path_ns", "int64", "Length of the path's parts in the class; they add up to `span_ns`.", "ns"),
    key=("step", "class"),
)

#: The tables of the critical path by name.
PATHS = {table.name: table for table in (CRITICAL_PATH, CRITICAL_STEPS)}
