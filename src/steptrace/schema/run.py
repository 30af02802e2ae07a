"""The tables that a run writes."""

from steptrace.schema.table import Column, Table

STEPS_OF_RUN = Table(
    "steps_of_run",
    "One training step of a run, in the order they ran (steps.parquet).",
    Column("phase", "string", "`warmup`, `timed` (unprofiled, the only source of step times) or `profiled`."),
    Column("step", "int64", "Index of the step within the run, from 0."),
    Column("step_ns", "int64", "Time of the step: CUDA events on a GPU, the monotonic clock on a CPU.", "ns"),
    Column(
        "loader_wait_ns",
        "int64",
        "Host time spent in the loader's `__next__` for this step; null in a program without a DataLoader.",
        "ns",
        nullable=True,
    ),
    Column("loss", "float64", "Loss of the step, read after the phase ended.", nullable=True),
    key=("step",),
)

SECTIONS_OF_RUN = Table(
    "sections_of_run",
    "One section of one step in a pass of its own, the device synchronised around each (sections.parquet).",
    Column("step", "int64", "Index of the step within the pass, from 0."),
    Column("section", "string", "`copy data`, `forward`, `calc loss`, `backward` or `optimizer`."),
    Column("section_ns", "int64", "Host time from synchronisation to synchronisation.", "ns"),
    key=("step", "section"),
)

INPUT_OF_RUN = Table(
    "input_of_run",
    "What loading one batch was made of, in a pass of its own (input.parquet). The times are taken where the work "
    "is done: with workers, those of several batches overlap, and only the wait holds a step up.",
    Column("batch", "int64", "Index of the batch within the pass, from 0."),
    Column("worker", "int64", "Worker process that loaded it; null for the main process.", nullable=True),
    Column("wait_ns", "int64", "Host time spent in the loader's `__next__` for it.", "ns"),
    Column("fetch_ns", "int64", "Time in the data set, for all samples of the batch, `transform_ns` included.", "ns"),
    Column(
        "transform_ns",
        "int64",
        "Time in the data set's `transform` or `transforms`; null if it has none.",
        "ns",
        nullable=True,
    ),
    Column("collate_ns", "int64", "Time in the collate function.", "ns"),
    Column(
        "pin_ns", "int64", "Time to copy it to pinned memory; null if the loader does not pin.", "ns", nullable=True
    ),
    Column(
        "copy_ns",
        "int64",
        "Time to copy it to the device, from synchronisation to synchronisation; null on a CPU.",
        "ns",
        nullable=True,
    ),
    key=("batch",),
)

OP_LINES = Table(
    "op_lines",
    "One operator dispatched in a watched training step, with the source line that called it (op_lines.parquet).",
    Column("step", "int64", "Number of the watched step, from 0."),
    Column("order", "int64", "Position of the operator within the step, from 0."),
    Column("op", "string", "Name of the operator without its overload, as in a trace: `aten::index`."),
    Column("label", "string", "Innermost `record_function` label around the call.", nullable=True),
    Column(
        "phase",
        "string",
        "`backward` within autograd's engine, or else the outermost label: data, forward, loss, backward or optimizer.",
        nullable=True,
    ),
    Column(
        "file",
        "string",
        "File of the first frame that is neither PyTorch's nor the pipeline's own, named as in a trace. In the "
        "backward pass that of the forward operator; null where no such frame exists.",
        nullable=True,
    ),
    Column("line", "int64", "Line of the call in `file`, from 1.", nullable=True),
    Column("function", "string", "Name of the function that the line stands in.", nullable=True),
    key=("step", "order"),
)
