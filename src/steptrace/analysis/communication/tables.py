"""The tables of collectives, on one rank and across ranks."""

from steptrace.schema.table import Column, Table

_RANK = Column("rank", "int64", "Rank, or the trace's place in the list where traces do not say.")
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

RANK_WAITS = Table(
    name="rank_waits",
    doc="One rank of a job: how far its clock is off, how long it waited in collectives, and for how long others did "
    "because of it.",
    columns=(
        _RANK,
        Column("clock_offset_ns", "int64", "Added to its times to align them; null if it shares nothing.", "ns", True),
        Column("clock_spread_ns", "int64", "Half the width of what the offset is the median of.", "ns", True),
        Column("collectives", "int64", "Its collectives."),
        Column("matched", "int64", "Those found on another rank too."),
        Column("last", "int64", "Of the matched: it was the last to arrive."),
        Column(
            "wait_ns",
            "int64",
            "Its time in matched collectives before the last rank arrived, each instant once.",
            "ns",
            True,
        ),
        Column("caused_ns", "int64", "Other ranks' waiting where it was last, added up over the ranks.", "ns", True),
        Column(
            "delay_ns", "int64", "How much sooner these could have begun without it: last less second-last.", "ns", True
        ),
    ),
    key=("rank",),
)

MATCHED_COLLECTIVES = Table(
    name="matched_collectives",
    doc="One rank's part in a collective that several ranks' traces hold.",
    columns=(
        Column("match", "int64", "Number of the collective."),
        _COLLECTIVE,
        _GROUP,
        Column("matched_by", "string", "`sequence` (group and number), `order` (on a host) or `time` (aligned times)."),
        _RANK,
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

RANK_KERNELS = Table(
    name="rank_kernels",
    doc="One kernel's time on each rank (by class and name), as a distribution over the ranks that ran it.",
    columns=(
        Column("name", "string", "Name as recorded."),
        Column("short_name", "string", "Name as a person would say it."),
        Column("class", "string", "`compute`, `comm` or `memory`."),
        Column("ranks", "int64", "Ranks that ran it."),
        Column("count", "int64", "Times it ran, on all ranks."),
        Column("sum_ns", "int64", "Its time on all ranks.", "ns"),
        Column("sum_min_ns", "int64", "Least time on a rank.", "ns"),
        Column("sum_median_ns", "float64", "Median over the ranks of its time.", "ns"),
        Column("sum_max_ns", "int64", "Most time on a rank.", "ns"),
        Column("mean_min_ns", "float64", "Least mean length on a rank.", "ns"),
        Column("mean_median_ns", "float64", "Median over the ranks of its mean length.", "ns"),
        Column("mean_max_ns", "float64", "Greatest mean length on a rank.", "ns"),
        Column("slowest_rank", "int64", "Rank with the greatest mean length."),
    ),
    key=("class", "name"),
)
