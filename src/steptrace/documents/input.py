"""Figures of waiting for data."""

from typing import Annotated, Literal

from steptrace.documents.base import Document, Row, column, described, field, key, reference

InputVerdict = Literal["none", "moderate", "high"]


@described("How long training threads waited for data in one step, or in the whole of a trace without steps.")
class InputWaitOfStep(Row, frozen=True):
    step: Annotated[int | None, reference("steps", "null for a trace without steps.", is_key=True)]
    index: Annotated[int | None, key("Step", "The N of `ProfilerStep#N`; null for a trace without steps.")]
    host_ns: Annotated[
        int, column("Length on the host", "Length of the step on the host, or of the trace.", kind="sum")
    ]
    waits: Annotated[int, column("Waits", "Waits that begin in it.", kind="sum")]
    wait_ns: Annotated[
        int,
        column(
            "Waiting", "Time in them, whoever's wait it is; side by side on two threads it counts once.", kind="sum"
        ),
    ]
    gpu_idle_wait_ns: Annotated[
        int | None,
        column("With the GPU idle", "Of that time, with the GPU idle; not measured without a GPU.", kind="sum"),
    ]


@described("Waiting for data: the steps together, and each.")
class Input(Document, frozen=True):
    source: Annotated[Literal["loader", "label"] | None, field("What tells of waits: a DataLoader, or our label.")]
    steps: Annotated[int | None, field("Steps; null for a trace without.", kind="sum")]
    window_ns: Annotated[int, field("Time of the steps, or of the trace.", kind="sum")]
    waits: Annotated[int | None, column("Waits", "Waits.", kind="total", plain=True)]
    wait_ns: Annotated[int | None, column("Waiting", "Time in them.", kind="total", plain=True)]
    gpu_idle_wait_ns: Annotated[
        int | None, column("Waiting with the GPU idle", "Of that, with the GPU idle.", kind="total")
    ]
    counted_ns: Annotated[int | None, field("What counts against the steps.", kind="sum")]
    share: Annotated[
        float | None,
        column(
            "Share of the time",
            "Of the steps' time; with a GPU only the waiting with the GPU idle counts. It is of unprofiled steps if "
            "their waits were recorded. Otherwise it is of the profiled steps, and each kind of steps counts as often "
            "as it comes.",
            "share",
            kind="share",
        ),
    ]
    verdict: Annotated[InputVerdict | None, column("Input-bound", "How much that is.")]
    by_step: Annotated[tuple[InputWaitOfStep, ...], field("Each step.")]
    unprofiled_wait_ns: Annotated[
        int | None, column("Waiting in an unprofiled step, mean", "From the record beside the trace.", kind="mean")
    ] = None
    unprofiled_step_ns: Annotated[
        int | None, column("Unprofiled step, mean", "Mean length of the same steps.", kind="mean")
    ] = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing tells of waits."""
        return self.wait_ns is None
