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
    table_of,
)

TEMPORAL = table_of("temporal", TemporalRow, "device", "step")
KERNEL_TYPES = table_of("kernel_types", KernelType, "classes")
KERNEL_NAMES = table_of("kernel_names", KernelName, "name", "class")
IDLE_GAPS = table_of("idle_gaps", IdleGap, "ts")
IDLE_ENDINGS = table_of("idle_endings", IdleEnding, "cause", "op", "label")
IDLE_BY_STREAM = table_of("idle_by_stream", StreamIdle, "device", "stream")
QUALITY_CHECKS = table_of("quality_checks", QualityCheck, "check")
KERNEL_FORMATS = table_of("kernel_formats", KernelFormat, "name", "bits", "by", "tensor_core", "eligible", "tf32")
TOP_OPERATORS = table_of("top_operators", TopOperator, "name")
