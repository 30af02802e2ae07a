"""How long the unprofiled steps of a variant wait for data, and what loading a batch is made of."""

from typing import Annotated

from steptrace.documents.base import Document, column, field
from steptrace.documents.input import InputVerdict
from steptrace.format import setting
from steptrace.limits import HIGH_SHARE, MODERATE_SHARE


class LoadingParts(Document, frozen=True):
    """Loading one batch by itself, in ms: medians of a pass of its own, timed in the process that does the work."""

    fetch: Annotated[
        float | None,
        column(
            "Fetch per batch",
            "Time in the data set with its transforms, median of a separate pass. With workers all parts of loading "
            "run beside the step and beside each other: only the wait costs.",
            "ms",
        ),
    ]
    collate: Annotated[float | None, column("Collate per batch", "Making a batch of its samples.", "ms")]
    pin: Annotated[float | None, column("Pin per batch", "Copying it to pinned memory.", "ms")]
    copy: Annotated[float | None, column("Copy per batch", "Copying it to the device.", "ms")]


class LoaderWait(Document, frozen=True):
    """Waiting for data in unprofiled steps."""

    workers: Annotated[int | None, field("Worker processes of the loader, by the configuration.")]
    wait_ms: Annotated[float | None, column("Wait", "Mean wait of an unprofiled step.")]
    counted_ms: Annotated[
        float | None,
        column(
            "Waiting for data",
            "Host time in the loader's next batch; on a GPU, only the part with the GPU idle counts.",
        ),
    ]
    step_ms: Annotated[float | None, field("Mean step time.")]
    idle_part: Annotated[
        float | None, column("Of it with the GPU idle", "Share of the wait with the GPU idle.", "share")
    ]
    share: Annotated[float | None, column("Share of the step", "What counts, as a share of the step time.", "share")]
    verdict: Annotated[
        InputVerdict | None,
        column(
            "Input-bound",
            f"Moderately input-bound if waiting for data counts for {setting(MODERATE_SHARE)} of the step time or "
            f"more, highly from {setting(HIGH_SHARE)} on: the thresholds of the TensorFlow Profiler.",
        ),
    ]
    breakdown_ms: Annotated[LoadingParts | None, field("What loading a batch is made of.")]
