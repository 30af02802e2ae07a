"""Figures of queues: how much work was waiting in front of each stream."""

from typing import Annotated

from steptrace.documents.base import Document, field
from steptrace.documents.column import column, key
from steptrace.limits import QUEUE_CAPACITY


class QueueLength(Document, frozen=True):
    """How much launched work of one stream has not begun, from this instant to the stream's next row."""

    device: Annotated[int, key("GPU", "GPU.", local=True)]
    stream: Annotated[int, key("Stream", "Stream.")]
    ts: Annotated[int, key("At", "Instant.", local=True)]
    length: Annotated[int, column("Length", "Activities launched and not begun.")]


class Queue(Document, frozen=True):
    """The queue of one stream from its first launch to its last start of an activity, weighted by time.

    It holds the activities that the host has begun to launch and the GPU has not begun to run.
    """

    device: Annotated[int, key("GPU", "GPU.", local=True)]
    stream: Annotated[int, key("Stream", "Stream.")]
    activities: Annotated[
        int, column("Activities", "Activities with a known launch: each enters and leaves the queue once.", total=True)
    ]
    unlinked: Annotated[int, column("Without launch", "Activities without a known launch: left out of the queue.")]
    span_ns: Annotated[int, column("Span", "Length of the series.")]
    mean: Annotated[float | None, column("Mean", "Mean length over time; not measured for a series without length.")]
    median: Annotated[int | None, field("Length that the queue does not exceed half of the time.")]
    p95: Annotated[int | None, column("p95", "Length that the queue does not exceed 95 % of the time.")]
    max: Annotated[int, column("Longest", "Greatest length.")]
    empty_ns: Annotated[
        int, column("Empty", "Time with nothing queued: the GPU depends on the host's next launch.", total=True)
    ]
    full_ns: Annotated[
        int,
        column(
            "Full",
            f"Time with {QUEUE_CAPACITY:,} activities or more queued: but for a graph's, the host's next launch "
            "blocks.",
            total=True,
        ),
    ]
