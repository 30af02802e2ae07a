"""The tables of collectives, on one rank and across ranks."""

from steptrace.documents.rows import table_of
from steptrace.documents.summary import RankKernel, RankWait
from steptrace.schema.table import Column, Table

_COLLECTIVE = Column("collective", "string", "`all_reduce`, ..., or the kernel's short name where nothing says it.")
_GROUP = Column("group", "string", "Process group, null if not said.", nullable=True)

COLLECTIVE_TIMES = Table(
    name="collective_times",
    doc="One collective's activity on a GPU, and how much of it computation did not hide.",
    columns=(
        Column("kernel", "int64", "Row of `kernels`."),
        _COLLECTIVE,
        _GROUP,
        Column("stream", "int64", "Stream it ran on."),
        Column("step", "int64", "Row of `steps`: the step that launched it, null outside them.", nullable=True),
        Column("ts", "int64", "Start.", "ns"),
        Column("dur_ns", "int64", "Length, waiting for other ranks included.", "ns"),
        Column("exposed_ns", "int64", "Of its length, without a compute kernel running.", "ns"),
        Column("bytes", "int64", "The larger of what this rank gives and gets; null if not said.", "B", nullable=True),
    ),
    key=("kernel",),
)

HOST_COLLECTIVES = Table(
    name="host_collectives",
    doc="One collective that the host carried out itself (gloo), and how much of it no operator hid.",
    columns=(
        Column("annotation", "int64", "Row of `annotations`: PyTorch's label around it."),
        _COLLECTIVE,
        Column("thread", "int64", "Row of `threads`: what carried it out."),
        Column("step", "int64", "Row of `steps`: the step it began in, null outside them.", nullable=True),
        Column("ts", "int64", "Start.", "ns"),
        Column("dur_ns", "int64", "Length, waiting for other ranks included.", "ns"),
        Column(
            "exposed_ns",
            "int64",
            "Of its length, without an operator on a thread that does training work; null if none is recorded.",
            "ns",
            nullable=True,
        ),
        Column("bytes", "int64", "What this rank gives; null if not said.", "B", nullable=True),
    ),
    key=("annotation",),
)
RANK_WAITS = table_of("rank_waits", RankWait, "rank")

MATCHED_COLLECTIVES = Table(
    name="matched_collectives",
    doc="One rank's part in a collective that several ranks' traces hold.",
    columns=(
        Column("match", "int64", "Number of the collective."),
        _COLLECTIVE,
        _GROUP,
        Column("matched_by", "string", "`sequence` (group and number), `order` (on a host) or `time` (aligned times)."),
        Column("rank", "int64", "Rank, or the trace's place in the list where traces do not say."),
        Column("kernel", "int64", "Row of that rank's `kernels`, null for a collective of the host.", nullable=True),
        Column("annotation", "int64", "Row of that rank's `annotations`, null for one of a GPU.", nullable=True),
        Column("step", "int64", "Row of that rank's `steps`.", nullable=True),
        Column("start_ns", "int64", "Aligned start.", "ns"),
        Column("dur_ns", "int64", "Length.", "ns"),
        Column("wait_ns", "int64", "Before the last rank arrived.", "ns"),
        Column("last", "bool", "Whether this rank was the last to arrive."),
    ),
    key=("match", "rank"),
)
RANK_KERNELS = table_of("rank_kernels", RankKernel, "class", "name")
