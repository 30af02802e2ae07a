"""The tables of the metrics that say what a GPU did, and why it did nothing.

A column that names a table of the trace holds a row number of it.
"""

from steptrace.documents.rows import (
    IdleEnding,
    IdleGap,
    KernelFormat,
    KernelName,
    KernelType,
    QualityCheck,
    StreamIdle,
    TemporalRow,
    TopOperator,
    columns_of,
)
from steptrace.schema.table import Table

TEMPORAL = Table(
    name="temporal",
    doc="Where one GPU's time went in one step, or (`step` null) from its first to its last activity. `compute_ns`, "
    "`exposed_comm_ns`, `exposed_memory_ns` and `idle_ns` add up to `span_ns` exactly.",
    columns=columns_of(TemporalRow),
    key=("device", "step"),
)

KERNEL_TYPES = Table(
    name="kernel_types",
    doc="How long exactly this set of classes ran on a GPU at once; the rows add up to its busy time exactly.",
    columns=columns_of(KernelType),
    key=("classes",),
)

KERNEL_NAMES = Table(
    name="kernel_names",
    doc="The activities of one GPU of one name. Lengths are added over streams: work side by side counts on each.",
    columns=columns_of(KernelName),
    key=("name", "class"),
)

IDLE_GAPS = Table(
    name="idle_gaps",
    doc="One gap between two activities of a GPU, all its streams taken together, with its cause and what ended it.",
    columns=columns_of(IdleGap),
    key=("ts",),
)

IDLE_ENDINGS = Table(
    name="idle_endings",
    doc="The gaps of one cause that activities of one operator ended.",
    columns=columns_of(IdleEnding),
    key=("cause", "op", "label"),
)

IDLE_BY_STREAM = Table(
    name="idle_by_stream",
    doc="The gaps before the activities of one stream, summed by category.",
    columns=columns_of(StreamIdle),
    key=("device", "stream"),
)

QUALITY_CHECKS = Table(
    name="quality_checks",
    doc="One thing that can be wrong with a trace, and how much of it is.",
    columns=columns_of(QualityCheck),
    key=("check",),
)

KERNEL_FORMATS = Table(
    name="kernel_formats",
    doc="The compute kernels of one GPU of one name: the number format of their arithmetic and whether it runs on "
    "tensor cores. Lengths are added over streams.",
    columns=columns_of(KernelFormat),
    key=("name", "bits", "by", "tensor_core", "eligible", "tf32"),
)

TOP_OPERATORS = Table(
    name="top_operators",
    doc="The operators of one name, by their own time: the GPU's where there is one, else the host's.",
    columns=columns_of(TopOperator),
    key=("name",),
)
