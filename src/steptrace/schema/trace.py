"""The tables of a trace, as the reader and the linker make them.

Times are ns since the first event of the trace. A column that names another table holds a row number of it.
"""

from typing import Final

from steptrace.schema.table import Column, Table

_TS = Column("ts", "int64", "Start.", "ns")
_DUR = Column("dur", "int64", "Length.", "ns")
_THREAD = Column("thread", "int64", "Row of `threads`: where the host ran it.")
_STEP = Column("step", "int64", "Row of `steps`: the training step it belongs to, null outside them.", nullable=True)

THREADS = Table(
    "threads",
    "One host thread of a trace.",
    Column("pid", "string", "Process id as written."),
    Column("tid", "string", "Thread id as written."),
    Column("name", "string", "Thread name, if the trace gives one.", nullable=True),
    Column("training", "bool", "Whether it does training work: it carries the steps, or runs their backward pass."),
    key=("pid", "tid"),
)

STEPS = Table(
    "steps",
    "One training step, marked by the profiler's `ProfilerStep#N` annotation on the host.",
    Column("index", "int64", "The N of `ProfilerStep#N`."),
    _TS,
    Column("dur", "int64", "Length, up to the end of the last GPU work launched in the step.", "ns"),
    Column("host_dur", "int64", "Length of the host's annotation alone.", "ns"),
    _THREAD,
)

OPS = Table(
    "ops",
    "One operator that ran on the host (`cpu_op`).",
    _TS,
    _DUR,
    _THREAD,
    Column("name", "string", "Operator name, such as `aten::index`."),
    Column("external_id", "int64", "The profiler's id, repeated on the launches it made.", nullable=True),
    Column("sequence", "int64", "Autograd sequence number, shared by an op and its backward.", nullable=True),
    Column("dtypes", "string", "Types of its inputs as recorded, each once; empty where none are recorded."),
    Column("types", "string", "Types of its inputs as the trace has them, a JSON list; `null` where it has none."),
    Column("sizes", "string", "The same of their sizes."),
    Column("strides", "string", "The same of their strides."),
    Column("backward", "bool", "Whether it runs in the backward pass."),
    Column("parent", "int64", "Row of `ops`: the operator that called it.", nullable=True),
    Column("forward", "int64", "Row of `ops`: the forward operator that a backward one belongs to.", nullable=True),
    Column("annotation", "int64", "Row of `annotations`: the innermost label around it.", nullable=True),
    Column("frame", "int64", "Row of `frames`: the innermost Python frame around it.", nullable=True),
    _STEP,
)

LAUNCHES = Table(
    "launches",
    "One host call into the GPU's runtime or driver; most launch GPU work, some wait for it, some only ask.",
    _TS,
    _DUR,
    _THREAD,
    Column("name", "string", "Call, such as `cudaLaunchKernel`, without version suffix."),
    Column("correlation", "int64", "Id that the GPU work it caused repeats.", nullable=True),
    Column("external_id", "int64", "Id of the operator it was made under, by the profiler.", nullable=True),
    Column("op", "int64", "Row of `ops`: the innermost operator around it.", nullable=True),
    _STEP,
)

KERNELS = Table(
    "kernels",
    "One activity of a GPU: a kernel, a copy (memcpy) or a memory set (memset).",
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
)

COLLECTIVES = Table(
    "collectives",
    "One GPU activity of a collective, with what PyTorch says of it.",
    Column("kernel", "int64", "Row of `kernels`."),
    Column(
        "name", "string", "`all_reduce`, `all_gather`, ...; null where neither args nor names say it.", nullable=True
    ),
    Column("group", "string", "Name of the process group.", nullable=True),
    Column("group_ranks", "string", "Ranks of the process group, as written.", nullable=True),
    Column("group_size", "int64", "Number of ranks of the process group.", nullable=True),
    Column("sequence", "int64", "Number of the collective within its process group.", nullable=True),
    Column("dtype", "string", "Element type as PyTorch calls it.", nullable=True),
    Column("in_elements", "int64", "Elements this rank gives.", nullable=True),
    Column("out_elements", "int64", "Elements this rank gets.", nullable=True),
    key=("kernel",),
)

SYNCS = Table(
    "syncs",
    "One host synchronisation: the host goes on only once queued GPU work is complete.",
    _TS,
    Column("dur", "int64", "From the start of its first call to the end of its last.", "ns"),
    _THREAD,
    Column("kind", "string", "`d2h_copy`, `h2d_copy`, or the name of the waiting call."),
    Column("blocked_ns", "int64", "Host time within its calls.", "ns"),
    Column("launch", "int64", "Row of `launches`: its first call."),
    Column("op", "int64", "Row of `ops`: the innermost operator around it.", nullable=True),
    _STEP,
    Column("counted", "bool", "Whether it counts: on a training thread, and in a step if the trace has any."),
)

FRAMES = Table(
    "frames",
    "One call of a Python function (`python_function`; traces recorded with stacks only).",
    _TS,
    _DUR,
    _THREAD,
    Column("name", "string", "As recorded: `file(line of the def): function`, or a pseudo-frame."),
    Column("parent", "int64", "Row of `frames`: the calling frame.", nullable=True),
)

ANNOTATIONS = Table(
    "annotations",
    "One labelled part of the program (`record_function`, `user_annotation`).",
    _TS,
    _DUR,
    _THREAD,
    Column("name", "string", "The label."),
    Column("parent", "int64", "Row of `annotations`: the label around it.", nullable=True),
    Column("bytes", "int64", "What a host's collective is given, by PyTorch's label for it.", "B", nullable=True),
    _STEP,
)

MEMORY = Table(
    "memory",
    "One allocation (positive bytes) or release (negative) by PyTorch's allocators.",
    _TS,
    _THREAD,
    Column("device_type", "int64", "0 is the host, 1 a CUDA or ROCm device."),
    Column("device", "int64", "Index of the device, null for the host.", nullable=True),
    Column("address", "int64", "Address of the block.", nullable=True),
    Column("bytes", "int64", "Bytes allocated, negative when released.", "B"),
    Column("allocated", "int64", "Bytes allocated on the device after it.", "B", nullable=True),
    Column("reserved", "int64", "Bytes reserved from the device after it.", "B", nullable=True),
)

#: The tables of a trace by name.
TABLES: Final = {
    table.name: table
    for table in (THREADS, STEPS, OPS, LAUNCHES, KERNELS, COLLECTIVES, SYNCS, FRAMES, ANNOTATIONS, MEMORY)
}
