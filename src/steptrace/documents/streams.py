"""Figures of streams: how many work at once, how much of each one's work others hide, and the queue before each."""

from typing import Annotated

from steptrace.documents.base import Document, Row, column, described, field, key
from steptrace.format import count
from steptrace.limits import QUEUE_CAPACITY


@described(
    """The time with work running on exactly so many streams; all rows add up to the steps, or to the GPU's span.
    """
)
class StreamsAtOnce(Row, frozen=True):
    streams: Annotated[int, key("Streams at once", "Streams with a kernel, copy or set running; 0: the GPU is idle.")]
    ns: Annotated[int, column("Time", "How long, in one piece or in many.", kind="total")]
    share: Annotated[float, column("Share of time", "Of all rows' time.", "share", kind="share")]


@described("One stream's work within the steps, or within the GPU's span; the longest first.")
class StreamRow(Row, frozen=True):
    stream: Annotated[int, key("Stream", "Stream.")]
    work: Annotated[str, column("Mostly", "What takes most of its time: `compute`, `comm` or `memory`.")]
    busy_ns: Annotated[int, column("Busy", "Time with any of its work running, each instant once.", kind="total")]
    alone_ns: Annotated[int, column("Alone", "Of that, with no other stream's work running.", kind="total")]
    hidden: Annotated[
        float, column("Hidden", "Share of its busy time in which another stream's work ran too.", "share", kind="share")
    ]


class QueueLength(Document, frozen=True):
    """How much launched work of one stream has not begun, from this instant to the stream's next row."""

    device: Annotated[int, key("GPU", "GPU.", local=True)]
    stream: Annotated[int, key("Stream", "Stream.")]
    ts: Annotated[int, key("At", "Instant.", local=True)]
    length: Annotated[int, column("Length", "Activities launched and not begun.")]


@described(
    """The queue of one stream from its first launch to its last start of an activity, weighted by time.

    It holds the activities that the host has begun to launch and the GPU has not begun to run.
    """
)
class Queue(Row, frozen=True):
    device: Annotated[int, key("GPU", "GPU.", local=True)]
    stream: Annotated[int, key("Stream", "Stream.")]
    activities: Annotated[
        int,
        column("Activities", "Activities with a known launch: each enters and leaves the queue once.", kind="total"),
    ]
    unlinked: Annotated[
        int, column("Without launch", "Activities without a known launch: left out of the queue.", kind="sum")
    ]
    span_ns: Annotated[int, column("Span", "Length of the series.", kind="sum")]
    mean: Annotated[
        float | None, column("Mean", "Mean length over time; not measured for a series without length.", kind="mean")
    ]
    median: Annotated[int | None, field("Length that the queue does not exceed half of the time.", kind="mean")]
    p95: Annotated[int | None, column("p95", "Length that the queue does not exceed 95 % of the time.", kind="mean")]
    max: Annotated[int, column("Longest", "Greatest length.", kind="max", plain=True)]
    empty_ns: Annotated[
        int, column("Empty", "Time with nothing queued: the GPU depends on the host's next launch.", kind="total")
    ]
    full_ns: Annotated[
        int,
        column(
            "Full",
            f"Time with {count(QUEUE_CAPACITY)} activities or more queued. The next launch blocks, unless it is a "
            "CUDA graph launch.",
            kind="total",
        ),
    ]
