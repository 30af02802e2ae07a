"""The figures of a profiled step, each declared once: what stands here stands in every place that shows figures.

Each is a key of a trace in summary.json and of a variant in comparison.json (there the median over the runs), a fact on
a trace's page, a column of a study's table, a row of `steptrace diff`, a figure for gates, and a row of
docs/metrics.md. How it is computed stands in `analysis/overview.py`. A key that ends in `_per_step` is a
median over the steps, and null for a trace without steps.
"""

from typing import Annotated, Final

from steptrace.documents.base import Document
from steptrace.documents.column import Column, column, columns_of


class StepFigures(Document, frozen=True):
    """The figures of one trace, or the medians of a variant's."""

    gpu_busy_pct: Annotated[
        float | None,
        column(
            "GPU busy",
            "Share of the profiled time, from the first step's start, or the end of work launched before the "
            "recording, to the end of the last step's work, with a kernel, copy or memset running. Without steps: of "
            "the GPU's span.",
        ),
    ]
    sm_weighted_pct: Annotated[
        float | None,
        column(
            "Multiprocessors in use",
            "GPU busy, where a kernel counts only with the share of the GPU's multiprocessors that its blocks can "
            "occupy: lower than GPU busy where kernels are too small to fill the GPU.",
        ),
    ]
    operators_per_step: Annotated[
        float | None,
        column(
            "Operators per step",
            "PyTorch operators that the program or a backward node calls; what they call inside counts with them.",
        ),
    ]
    kernels_per_step: Annotated[
        float | None, column("Kernels per step", "Kernels that a profiled step launches, without copies and sets.")
    ]
    streams_per_step: Annotated[
        float | None, column("Streams per step", "GPU streams that a profiled step's work runs on.")
    ]


#: In the order of a page.
STEP_FIGURES: Final[tuple[Column, ...]] = columns_of(StepFigures)
