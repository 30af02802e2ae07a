"""Every table that steptrace writes or passes on, declared once.

A column has a name, a dtype, a unit, whether it may be null, and one sentence on what it means. Names ending in `_ns`
are int64 nanoseconds. `validate` holds a DataFrame against its declaration; `empty` makes one without rows.
"""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from steptrace.errors import SchemaError

#: What a declared dtype admits as the pandas dtype of a column.
_KINDS: dict[str, str] = {
    "int64": "iu",
    "float64": "f",
    "bool": "b",
    "string": "OSUT",
}


@dataclass(frozen=True)
class Column:
    """One column: its name, dtype (`int64`, `float64`, `bool`, `string`), meaning, unit and whether it may be null."""

    name: str
    dtype: str
    doc: str
    unit: str | None = None
    nullable: bool = False


@dataclass(frozen=True)
class Table:
    """One table: its name, what a row is, its columns, and the columns that together identify a row."""

    name: str
    doc: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The column names in their declared order."""
        return [column.name for column in self.columns]


def validate(frame: pd.DataFrame, table: Table) -> pd.DataFrame:
    """Return `frame` with its columns in declared order, or raise `SchemaError` naming the first defect."""
    missing = [name for name in table.names if name not in frame.columns]
    unknown = [str(name) for name in frame.columns if name not in table.names]
    if missing or unknown:
        raise SchemaError(
            f"table has missing columns {missing} and unknown columns {unknown}",
            where=table.name,
            expected=", ".join(table.names),
        )
    frame = frame[table.names]
    for column in table.columns:
        _validate_column(frame[column.name], column, table)
    if table.key and frame.duplicated(list(table.key)).any():
        row = frame[frame.duplicated(list(table.key))].iloc[0][list(table.key)].to_dict()
        raise SchemaError(f"two rows have the key {row}", where=table.name)
    return frame


def _validate_column(values: "pd.Series[Any]", column: Column, table: Table) -> None:
    where = f"{table.name}.{column.name}"
    if not column.nullable and bool(values.isna().any()):
        raise SchemaError("column holds nulls", where=where, expected="a value in every row")
    kind = values.dtype.kind
    # A nullable column without any value carries no type of its own.
    if kind not in _KINDS[column.dtype] and not bool(values.isna().all()):
        raise SchemaError(f"column has dtype {values.dtype}", where=where, expected=column.dtype)


def empty(table: Table) -> pd.DataFrame:
    """A frame of `table` without rows."""
    dtypes = {"int64": "int64", "float64": "float64", "bool": "bool", "string": "object"}
    return pd.DataFrame({column.name: pd.Series(dtype=dtypes[column.dtype]) for column in table.columns})


STEPS_OF_RUN = Table(
    name="steps_of_run",
    doc="One training step of a run, in the order they ran (steps.parquet).",
    columns=(
        Column("phase", "string", "`warmup`, `timed` (unprofiled, the only source of step times) or `profiled`."),
        Column("step", "int64", "Index of the step within the run, from 0."),
        Column("step_ns", "int64", "Time of the step: CUDA events on a GPU, the monotonic clock on a CPU.", "ns"),
        Column("loader_wait_ns", "int64", "Host time spent in the loader's `__next__` for this step.", "ns"),
        Column("loss", "float64", "Loss of the step, read after the phase ended.", nullable=True),
    ),
    key=("step",),
)

SECTIONS_OF_RUN = Table(
    name="sections_of_run",
    doc="One section of one step in a pass of its own, the device synchronised around each (sections.parquet).",
    columns=(
        Column("step", "int64", "Index of the step within the pass, from 0."),
        Column("section", "string", "`copy data`, `forward`, `calc loss`, `backward` or `optimizer`."),
        Column("section_ns", "int64", "Host time from synchronisation to synchronisation.", "ns"),
    ),
    key=("step", "section"),
)

# ---- A trace's tables ------------------------------------------------------------------------------------------------
# Times are ns since the first event of the trace. A column that names another table holds a row number of it.

_TS = Column("ts", "int64", "Start.", "ns")
_DUR = Column("dur", "int64", "Length.", "ns")
_THREAD = Column("thread", "int64", "Row of `threads`: where the host ran it.")
_STEP = Column("step", "int64", "Row of `steps`: the training step it belongs to, null outside them.", nullable=True)

THREADS = Table(
    name="threads",
    doc="One host thread of a trace.",
    columns=(
        Column("pid", "string", "Process id as written."),
        Column("tid", "string", "Thread id as written."),
        Column("name", "string", "Thread name, if the trace gives one.", nullable=True),
        Column("training", "bool", "Whether it does training work: it carries the steps, or runs their backward pass."),
    ),
    key=("pid", "tid"),
)

STEPS = Table(
    name="steps",
    doc="One training step, marked by the profiler's `ProfilerStep#N` annotation on the host.",
    columns=(
        Column("index", "int64", "The N of `ProfilerStep#N`."),
        _TS,
        Column("dur", "int64", "Length, up to the end of the last GPU work launched in the step.", "ns"),
        Column("host_dur", "int64", "Length of the host's annotation alone.", "ns"),
        _THREAD,
    ),
)

OPS = Table(
    name="ops",
    doc="One operator that ran on the host (`cpu_op`).",
    columns=(
        _TS,
        _DUR,
        _THREAD,
        Column("name", "string", "Operator name, such as `aten::index`."),
        Column("external_id", "int64", "The profiler's id, repeated on the launches it made.", nullable=True),
        Column("sequence", "int64", "Autograd sequence number, shared by an op and its backward.", nullable=True),
        Column("backward", "bool", "Whether it runs in the backward pass."),
        Column("parent", "int64", "Row of `ops`: the operator that called it.", nullable=True),
        Column("forward", "int64", "Row of `ops`: the forward operator that a backward one belongs to.", nullable=True),
        Column("annotation", "int64", "Row of `annotations`: the innermost label around it.", nullable=True),
        Column("frame", "int64", "Row of `frames`: the innermost Python frame around it.", nullable=True),
        _STEP,
    ),
)

LAUNCHES = Table(
    name="launches",
    doc="One host call into the GPU's runtime or driver; most launch GPU work, some wait for it, some only ask.",
    columns=(
        _TS,
        _DUR,
        _THREAD,
        Column("name", "string", "Call, such as `cudaLaunchKernel`, without version suffix."),
        Column("correlation", "int64", "Id that the GPU work it caused repeats.", nullable=True),
        Column("external_id", "int64", "Id of the operator it was made under, by the profiler.", nullable=True),
        Column("op", "int64", "Row of `ops`: the innermost operator around it.", nullable=True),
        _STEP,
    ),
)

KERNELS = Table(
    name="kernels",
    doc="One activity of a GPU: a kernel, a copy (memcpy) or a memory set (memset).",
    columns=(
        _TS,
        _DUR,
        Column("device", "int64", "GPU it ran on."),
        Column("stream", "int64", "Stream it ran on."),
        Column("name", "string", "Name as recorded."),
        Column("category", "string", "`kernel`, `memcpy` or `memset`."),
        Column("kind", "string", "`compute`, `comm` (collectives) or `memory` (memcpy and memset)."),
        Column("correlation", "int64", "Id of the launch that caused it.", nullable=True),
        Column("launch", "int64", "Row of `launches`: the call that caused it; one may cause many.", nullable=True),
        _STEP,
        Column("bytes", "int64", "Bytes moved or set.", "B", nullable=True),
        Column("blocks_per_sm", "float64", "Thread blocks per multiprocessor of the GPU.", nullable=True),
    ),
)

SYNCS = Table(
    name="syncs",
    doc="One host synchronisation: the host goes on only once queued GPU work is complete.",
    columns=(
        _TS,
        Column("dur", "int64", "From the start of its first call to the end of its last.", "ns"),
        _THREAD,
        Column("kind", "string", "`d2h_copy`, `h2d_copy`, or the name of the waiting call."),
        Column("blocked_ns", "int64", "Host time within its calls.", "ns"),
        Column("launch", "int64", "Row of `launches`: its first call."),
        Column("op", "int64", "Row of `ops`: the innermost operator around it.", nullable=True),
        _STEP,
        Column("counted", "bool", "Whether it counts: on a training thread, and in a step if the trace has any."),
    ),
)

FRAMES = Table(
    name="frames",
    doc="One call of a Python function (`python_function`; traces recorded with stacks only).",
    columns=(
        _TS,
        _DUR,
        _THREAD,
        Column("name", "string", "As recorded: `file(line of the def): function`, or a pseudo-frame."),
        Column("parent", "int64", "Row of `frames`: the calling frame.", nullable=True),
    ),
)

ANNOTATIONS = Table(
    name="annotations",
    doc="One labelled part of the program (`record_function`, `user_annotation`).",
    columns=(
        _TS,
        _DUR,
        _THREAD,
        Column("name", "string", "The label."),
        Column("parent", "int64", "Row of `annotations`: the label around it.", nullable=True),
        _STEP,
    ),
)

MEMORY = Table(
    name="memory",
    doc="One allocation (positive bytes) or release (negative) by PyTorch's allocators.",
    columns=(
        _TS,
        _THREAD,
        Column("device_type", "int64", "0 is the host, 1 a CUDA or ROCm device."),
        Column("device", "int64", "Index of the device, null for the host.", nullable=True),
        Column("address", "int64", "Address of the block.", nullable=True),
        Column("bytes", "int64", "Bytes allocated, negative when released.", "B"),
        Column("allocated", "int64", "Bytes allocated on the device after it.", "B", nullable=True),
        Column("reserved", "int64", "Bytes reserved from the device after it.", "B", nullable=True),
    ),
)

OP_LINES = Table(
    name="op_lines",
    doc="One operator dispatched in one training step, with the source line that called it (op_lines.parquet).",
    columns=(
        Column("order", "int64", "Position of the operator within the step, from 0."),
        Column("op", "string", "Name of the operator without its overload, as in a trace: `aten::index`."),
        Column("label", "string", "Innermost `record_function` label around the call.", nullable=True),
        Column("phase", "string", "Outermost label: data, forward, loss, backward or optimizer.", nullable=True),
        Column(
            "file",
            "string",
            "File of the first frame that is neither PyTorch's nor the pipeline's own, named as in a trace. In the "
            "backward pass that of the forward operator; null where no such frame exists.",
            nullable=True,
        ),
        Column("line", "int64", "Line of the call in `file`, from 1.", nullable=True),
        Column("function", "string", "Name of the function that the line stands in.", nullable=True),
    ),
    key=("order",),
)
