"""Where the time of GPUs and of steps went, the kinds of steps, and the figures of a profiled step.

A step's figures are declared once: each is a key of a trace in summary.json and of a variant in comparison.json (there
the median over the runs), a fact on a trace's page, a column of a study's table, a row of `steptrace diff`, a figure
for gates, and a row of docs/metrics.md. They are computed in `analysis/overview.py`. A key that ends in `_per_step` is
a median over the steps, and null for a trace without steps.
"""

from typing import Annotated, Final

from steptrace.documents.base import Column, Document, Row, column, columns_of, described, field, key


@described(
    """Where a GPU's time went, over the whole trace; compute, exposed parts and idle add up to the span exactly.
    """
)
class GpuTime(Document, frozen=True):
    activities: Annotated[int, column("GPU activities", "Kernels, copies and sets.", kind="sum")]
    span_ns: Annotated[int | None, column("GPU span", "First start to last end of GPU work.", kind="sum")]
    busy_ns: Annotated[int | None, column("Busy", "Union of all GPU work.", kind="sum")]
    idle_ns: Annotated[int | None, column("Idle", "The span without any GPU work.", kind="sum")]
    compute_ns: Annotated[int | None, column("Compute", "Union of compute kernels.", kind="sum")]
    comm_ns: Annotated[int | None, column("Communication", "Union of collectives' kernels.", kind="sum")]
    memory_ns: Annotated[int | None, column("Memory", "Union of copies and sets.", kind="sum")]
    exposed_comm_ns: Annotated[
        int | None, column("Exposed communication", "Communication that no compute hides.", kind="sum")
    ]
    exposed_memory_ns: Annotated[
        int | None, column("Exposed copies and memsets", "Copies and sets that no kernel hides.", kind="sum")
    ]
    comm_compute_overlap_ns: Annotated[
        int | None, column("Communication and compute", "Time with both at once.", kind="sum")
    ]
    overlap_pct: Annotated[
        float | None,
        column("Communication hidden", "Share of communication that runs while compute does.", kind="share"),
    ]

    @property
    def is_empty(self) -> bool:
        """Whether there is no figure of a GPU."""
        return self.span_ns is None


@described("One step; without a GPU its GPU figures are not measured.")
class StepTime(Document, frozen=True):
    index: Annotated[int, key("ProfilerStep", "The profiler's number of the step.")]
    start_ns: Annotated[int, field("Start.", kind="first")]
    dur_ns: Annotated[
        int,
        column(
            "Span",
            "From its start on the host to the end of the last work launched in it. Where the host runs ahead, spans "
            "overlap, and are longer than the steps.",
            kind="sum",
        ),
    ]
    host_dur_ns: Annotated[int, column("On the host", "Length on the host.", kind="sum")]
    busy_ns: Annotated[int | None, column("Busy", "Union of all GPU work in its span.", kind="sum")]
    compute_ns: Annotated[int | None, column("Compute", "Union of compute kernels in it.", kind="sum")]
    exposed_comm_ns: Annotated[
        int | None, column("Exposed communication", "Communication that no compute hides.", kind="sum")
    ]
    exposed_memory_ns: Annotated[
        int | None, column("Exposed copies and memsets", "Copies and sets that no kernel hides.", kind="sum")
    ]
    idle_ns: Annotated[int | None, column("Idle", "Its span without any GPU work.", kind="sum")]
    length_ns: Annotated[
        int | None,
        column(
            "Length",
            "What it adds to the time of all steps: on a GPU from the end of the work before to the end of its own.",
            kind="sum",
        ),
    ] = None


@described("The unprofiled steps of one kind: a validation, a rollout or a checkpoint makes some differ from most.")
class StepKind(Row, frozen=True):
    kind: Annotated[
        str,
        key(
            "Kind of step",
            "`other`, `other 2`: more or fewer operators, every so many steps; else at least twice the median time, if "
            "such steps lift the mean by over a tenth.",
        ),
    ]
    steps: Annotated[int, column("Steps", "How many of the timed steps are of this kind.", kind="sum")]
    of: Annotated[int, column("Of", "All timed steps.", kind="sum", plain=True)]
    median_ns: Annotated[int, column("Median", "Median time of these steps.", kind="mean")]
    share: Annotated[float, column("Share of the time", "Of the time of all timed steps.", "share", kind="share")]
    comes: Annotated[
        str,
        column("Comes", "How often, as far as these steps show: `every 16 steps`, `once`, `irregularly`, `mostly`."),
    ]
    syncs: Annotated[float | None, column("Syncs", "Median of the profiled steps of this kind.", kind="mean")]


@described("The figures of one trace, or the medians of a variant's.")
class StepFigures(Document, frozen=True, kw_only=True):
    gpu_busy_pct: Annotated[
        float | None,
        column(
            "GPU busy",
            "Share of the profiled time, from the first step's start, or the end of work launched before the "
            "recording, to the end of the last step's work, with a kernel, copy or memset running. Without steps: of "
            "the GPU's span.",
            kind="share",
        ),
    ]
    sm_weighted_pct: Annotated[
        float | None,
        column(
            "Multiprocessors in use",
            "GPU busy, where a kernel counts only with the share of the GPU's multiprocessors that its blocks can "
            "occupy: lower than GPU busy where kernels are too small to fill the GPU.",
            kind="share",
        ),
    ]
    operators_per_step: Annotated[
        float | None,
        column(
            "Operators per step",
            "PyTorch operators that the program or a backward node calls. Operators that these call inside do not "
            "count separately.",
            kind="rate",
        ),
    ]
    kernels_per_step: Annotated[
        float | None,
        column("Kernels per step", "Kernels that a profiled step launches, without copies and sets.", kind="rate"),
    ]
    streams_per_step: Annotated[
        float | None, column("Streams per step", "GPU streams that a profiled step's work runs on.", kind="rate")
    ]
    tflop_per_s: Annotated[
        float | None,
        column(
            "TFLOP/s",
            "FLOP of matrix products, convolutions and attention / the profiled time. They follow from the recorded "
            "sizes of the inputs (`record_shapes=True`). Not measured where less than 95 % of the time of such kernels "
            "is covered, as where CUDA graphs launch them.",
            kind="rate",
        ),
    ] = None
    mfu_pct: Annotated[
        float | None,
        column(
            "MFU",
            "Model FLOP utilisation: those TFLOP/s in percent of the data sheet's dense peak in the number format that "
            "most of the FLOP are in. What a step computes twice, as with activation checkpointing, counts twice.",
            kind="share",
        ),
    ] = None


#: In the order of a page.
STEP_FIGURES: Final[tuple[Column, ...]] = columns_of(StepFigures)


def measured_figures(*documents: StepFigures) -> tuple[Column, ...]:
    """The figures of a step, without those that need more than a usual trace and that none of these documents has."""
    return tuple(
        figure
        for figure in STEP_FIGURES
        if figure.name not in _OPTIONAL or any(getattr(document, figure.name) is not None for document in documents)
    )


#: They have a default, since files of earlier releases lack them.
_OPTIONAL: Final = frozenset(StepFigures.__struct_fields__[-len(StepFigures.__struct_defaults__) :])
