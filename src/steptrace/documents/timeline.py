"""The picture of a step."""

from typing import Annotated

from steptrace.documents.base import Document, field
from steptrace.documents.column import column


class Lane(Document, frozen=True):
    """One lane of the picture of a step: its boxes as columns."""

    kind: Annotated[
        str,
        column(
            "Pale band",
            "A sync, through all lanes: it costs the idle time below it and until the next launch reaches the GPU.",
        ),
    ]
    name: Annotated[str, field("What stands at it.")]
    start_ns: Annotated[tuple[int, ...], field("Start of each box within the time shown.")]
    dur_ns: Annotated[tuple[int, ...], field("Length of each box.")]
    level: Annotated[tuple[int, ...], field("Row of each box within the lane.")]
    events: Annotated[
        tuple[int, ...],
        column(
            "Low box", "Several events of one kind, each too short to be seen; its height is the share that they fill."
        ),
    ]
    time_ns: Annotated[tuple[int, ...], field("Their lengths, summed.")]
    what: Annotated[tuple[int, ...], field("Place of each box's kind and name in `kinds` and `names`.")]


class Timeline(Document, frozen=True):
    """One step, the median one, as a picture shows it."""

    step: Annotated[
        int | None,
        column(
            "Picture of a step",
            "The step of median time, or a whole trace without steps; all that ran meanwhile, slowed by the profiler.",
        ),
    ]
    span_ns: Annotated[int, field("Its length.")]
    host_ns: Annotated[int | None, field("Length of the step on the host.")]
    left_out: Annotated[tuple[str, ...], field("How many threads and streams are not drawn.")]
    kinds: Annotated[tuple[str, ...], field("Kinds of boxes.")]
    names: Annotated[tuple[str, ...], field("Names of boxes.")]
    lanes: Annotated[tuple[Lane, ...], field("From top to bottom.")]
