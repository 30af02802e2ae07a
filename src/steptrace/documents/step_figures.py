"""The figures of a profiled step, each declared once: what stands here stands in every place that shows figures.

Each is a key of a trace in summary.json and of a variant in comparison.json (there the median over the runs), a fact on
a trace's page, a column of a study's table, a row of `steptrace diff`, a figure for gates, and a row of
docs/metrics.md. How it is computed stands in `analysis/overview.py`. A key that ends in `_per_step` is a
median over the steps, and null for a trace without steps.
"""

from dataclasses import dataclass
from typing import Annotated, Final, Literal, get_type_hints

import msgspec

from steptrace.documents.base import Document

Better = Literal["lower", "higher"]


@dataclass(frozen=True)
class StepFigure:
    """A figure as pages and tables show it; `better` is None where neither direction is."""

    key: str
    name: str
    unit: str | None
    definition: str
    better: Better | None
    needs_gpu: bool

    @property
    def needs_steps(self) -> bool:
        """Whether it is null for a trace without steps."""
        return self.key.endswith("_per_step")


def figure(
    name: str, definition: str, unit: str | None = None, *, better: Better | None, needs_gpu: bool
) -> msgspec.Meta:
    """The declaration of a figure, for `Annotated`."""
    return msgspec.Meta(
        title=name,
        description=definition,
        extra_json_schema={"unit": unit} if unit else None,
        extra={"unit": unit, "better": better, "needs_gpu": needs_gpu},
    )


class StepFigures(Document, frozen=True):
    """The figures of one trace, or the medians of a variant's."""

    gpu_busy_pct: Annotated[
        float | None,
        figure(
            "GPU busy",
            "Share of the profiled time in which at least one kernel, copy or memset ran on the GPU. That time lasts "
            "from the first step's start, or when work left over from earlier steps is done, to the end of the last "
            "step's work; in a trace without steps it is the GPU's span.",
            "%",
            better="higher",
            needs_gpu=True,
        ),
    ]
    sm_weighted_pct: Annotated[
        float | None,
        figure(
            "Multiprocessors busy",
            "GPU busy, each kernel weighted by the share of multiprocessors that its blocks can occupy.",
            "%",
            better="higher",
            needs_gpu=True,
        ),
    ]
    operators_per_step: Annotated[
        float | None,
        figure(
            "Operators per step",
            "PyTorch operators that the program or a backward node calls in a profiled step; what an operator calls "
            "inside counts with it. On a GPU most of them launch a kernel or several.",
            better="lower",
            needs_gpu=False,
        ),
    ]
    kernels_per_step: Annotated[
        float | None,
        figure(
            "Kernels per step",
            "Kernels that a profiled step launches on the GPU; copies and sets are none. A kernel whose launch is not "
            "in the trace belongs to the step in which it starts.",
            better="lower",
            needs_gpu=True,
        ),
    ]
    streams_per_step: Annotated[
        float | None,
        figure("Streams per step", "GPU streams that a profiled step's work runs on.", better=None, needs_gpu=True),
    ]


def _declared() -> tuple[StepFigure, ...]:
    hints = get_type_hints(StepFigures, include_extras=True)
    metas = {key: hints[key].__metadata__[0] for key in StepFigures.__struct_fields__}
    return tuple(
        StepFigure(key=key, name=meta.title, definition=meta.description, **meta.extra) for key, meta in metas.items()
    )


STEP_FIGURES: Final = _declared()
