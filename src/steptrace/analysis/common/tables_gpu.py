"""The tables of the metrics that say what a GPU did, and why it did nothing.

A column that names a table of the trace holds a row number of it.
"""

from steptrace.schema.table import Column, Table

_DEVICE = Column("device", "int64", "GPU.")
_CLASS = Column("class", "string", "`compute`, `comm` (collectives) or `memory` (memcpy and memset).")

TEMPORAL = Table(
    name="temporal",
    doc="Where one GPU's time went in one step, or (`step` null) from its first to its last activity. `compute_ns`, "
    "`exposed_comm_ns`, `exposed_memory_ns` and `idle_ns` add up to `span_ns` exactly.",
    columns=(
        Column("rank", "int64", "Rank of the trace, null if it does not say.", nullable=True),
        _DEVICE,
        Column("step", "int64", "Row of `steps`; null for the whole trace.", nullable=True),
        Column("index", "int64", "The N of `ProfilerStep#N`; null for the whole trace.", nullable=True),
        Column("start_ns", "int64", "Start of the span.", "ns"),
        Column("span_ns", "int64", "Length of the span: of a step, up to the end of the last work it launched.", "ns"),
        Column("busy_ns", "int64", "Time with any activity.", "ns"),
        Column("compute_ns", "int64", "Time with a compute kernel.", "ns"),
        Column("comm_ns", "int64", "Time with a collective's kernel, hidden or not.", "ns"),
        Column("memory_ns", "int64", "Time with a memcpy or memset, hidden or not.", "ns"),
        Column("exposed_comm_ns", "int64", "Time with a collective's kernel and no compute kernel.", "ns"),
        Column("exposed_memory_ns", "int64", "Time with a memcpy or memset and no kernel.", "ns"),
        Column("comm_compute_overlap_ns", "int64", "Time with a collective's and a compute kernel.", "ns"),
        Column("idle_ns", "int64", "Time without any activity.", "ns"),
    ),
    key=("device", "step"),
)

KERNEL_TYPES = Table(
    name="kernel_types",
    doc="How long exactly this set of classes ran on a GPU at once; the rows add up to its busy time exactly.",
    columns=(
        Column("classes", "string", "The classes, joined by ` + `: `compute`, `comm + memory`, and so on."),
        Column("ns", "int64", "Time in which these ran and no others.", "ns"),
        Column("busy_share", "float64", "Of the GPU's busy time, 0 to 1."),
    ),
    key=("classes",),
)

KERNEL_NAMES = Table(
    name="kernel_names",
    doc="The activities of one GPU of one name. Lengths are added over streams: work side by side counts on each.",
    columns=(
        Column("name", "string", "Name as recorded."),
        Column(
            "short_name", "string", "Name as a person would say it; what tells it from the table's others of the same."
        ),
        _CLASS,
        Column("count", "int64", "Activities."),
        Column("sum_ns", "int64", "Sum of their lengths.", "ns"),
        Column("mean_ns", "float64", "Mean length.", "ns"),
        Column("median_ns", "float64", "Median length.", "ns"),
        Column("min_ns", "int64", "Shortest.", "ns"),
        Column("max_ns", "int64", "Longest.", "ns"),
        Column("std_ns", "float64", "Standard deviation of the sample; null for one activity.", "ns", nullable=True),
        Column("share", "float64", "Of the summed lengths of all activities, 0 to 1."),
    ),
    key=("name", "class"),
)

IDLE_GAPS = Table(
    name="idle_gaps",
    doc="One gap between two activities of a GPU, all its streams taken together, with its cause and what ended it.",
    columns=(
        Column("ts", "int64", "Start of the gap.", "ns"),
        Column("dur", "int64", "Length.", "ns"),
        Column("cause", "string", "`sync`, `loader`, `host`, `dependency` or `unknown`."),
        Column("kernel", "int64", "Row of `kernels`: the activity that ended it."),
        Column("name", "string", "Short name of that activity."),
        Column("stream", "int64", "Stream it ran on."),
        Column("launch", "int64", "Row of `launches`: the call that caused it.", nullable=True),
        Column("launched_after_ns", "int64", "From the gap's start to the start of that call.", "ns", nullable=True),
        Column("op", "string", "The operator that made the call.", nullable=True),
        Column("label", "string", "The innermost label that the call was made in.", nullable=True),
        Column("step", "int64", "Row of `steps`: the step that launched it.", nullable=True),
    ),
    key=("ts",),
)

IDLE_ENDINGS = Table(
    name="idle_endings",
    doc="The gaps of one cause that activities of one operator ended.",
    columns=(
        Column("cause", "string", "`sync`, `loader`, `host`, `dependency` or `unknown`."),
        Column("op", "string", "The operator whose work ended them.", nullable=True),
        Column("label", "string", "The innermost label that launched it.", nullable=True),
        Column("gaps", "int64", "How many."),
        Column("idle_ns", "int64", "Their summed length.", "ns"),
        Column("longest_ns", "int64", "The longest.", "ns"),
    ),
    key=("cause", "op", "label"),
)

IDLE_BY_STREAM = Table(
    name="idle_by_stream",
    doc="The gaps before the activities of one stream, summed by category.",
    columns=(
        _DEVICE,
        Column("stream", "int64", "Stream."),
        Column("host_wait_ns", "int64", "Before work launched after the previous one had ended.", "ns"),
        Column("kernel_wait_ns", "int64", "Of the others, gaps under 30 us.", "ns"),
        Column("other_ns", "int64", "The rest.", "ns"),
    ),
    key=("device", "stream"),
)

QUALITY_CHECKS = Table(
    name="quality_checks",
    doc="One thing that can be wrong with a trace, and how much of it is.",
    columns=(
        Column("check", "string", "What was looked for."),
        Column("found", "int64", "How many are wrong."),
        Column("of", "int64", "Of how many."),
        Column("warns", "bool", "Whether that is enough to warn of."),
        Column("says", "string", "The warning, or that all is well."),
    ),
    key=("check",),
)

KERNEL_FORMATS = Table(
    name="kernel_formats",
    doc="The compute kernels of one GPU of one name: the number format of their arithmetic and whether it runs on "
    "tensor cores. Lengths are added over streams.",
    columns=(
        Column("name", "string", "Name as recorded."),
        Column(
            "short_name", "string", "Name as a person would say it; what tells it from the table's others of the same."
        ),
        Column("bits", "string", "`bits8` (and narrower), `bits16`, `bits32`, `bits64`, `integer` or `unknown`."),
        Column("by", "string", "What told it: the kernel's `name` or its operator's input `types`.", nullable=True),
        Column("tensor_core", "string", "Whether it runs on tensor cores: `yes`, `no` or `unknown`."),
        Column("eligible", "bool", "Whether its arithmetic is such as tensor cores do."),
        Column("tf32", "bool", "Whether its products are in TF32."),
        Column("count", "int64", "Kernels."),
        Column("ns", "int64", "Sum of their lengths.", "ns"),
    ),
    key=("name", "bits", "by", "tensor_core", "eligible", "tf32"),
)

TOP_OPERATORS = Table(
    name="top_operators",
    doc="The operators of one name, by their own time: the GPU's where there is one, else the host's.",
    columns=(
        Column("name", "string", "Operator; null for GPU work that none launched.", nullable=True),
        Column("calls", "int64", "Calls; null without an operator.", nullable=True),
        Column(
            "host_self_ns",
            "int64",
            "Host time without the operators and calls inside; null without an operator.",
            "ns",
            nullable=True,
        ),
        Column(
            "device_self_ns",
            "int64",
            "Length of the GPU work that it launched and no operator inside it; null without a GPU.",
            "ns",
            nullable=True,
        ),
        Column("share", "float64", "Of all GPU time, or, without a GPU, of all operators' own host time; 0 to 1."),
    ),
    key=("name",),
)
