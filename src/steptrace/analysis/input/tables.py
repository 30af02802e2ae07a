"""The tables of the input pipeline."""

from steptrace.schema.table import Column, Table

INPUT_WAITS = Table(
    name="input_waits",
    doc="How long training threads waited for data in one step, or in the whole of a trace without steps.",
    columns=(
        Column("step", "int64", "Row of `steps`; null for a trace without steps.", nullable=True),
        Column("index", "int64", "The N of `ProfilerStep#N`; null for a trace without steps.", nullable=True),
        Column("host_ns", "int64", "Length of the step on the host, or of the trace.", "ns"),
        Column("waits", "int64", "Waits that begin in it."),
        Column(
            "wait_ns", "int64", "Time in them, whoever's wait it is; side by side on two threads it counts once.", "ns"
        ),
        Column(
            "gpu_idle_wait_ns",
            "int64",
            "Of that time, what the GPU had nothing to do in; null without a GPU.",
            "ns",
            nullable=True,
        ),
    ),
    key=("step",),
)
