"""Figures of streams: how many of a GPU's work at once, and how much of each one's work others hide."""

from typing import Annotated

from steptrace.documents.base import Document
from steptrace.documents.column import column, key


class StreamsAtOnce(Document, frozen=True):
    """The time with work running on exactly so many streams; all rows add up to the steps, or to the GPU's span."""

    streams: Annotated[int, key("Streams at once", "Streams with a kernel, copy or set running; 0: the GPU is idle.")]
    ns: Annotated[int, column("Time", "How long, in one piece or in many.", total=True)]
    share: Annotated[float, column("Share of time", "Of all rows' time.", "share")]


class Stream(Document, frozen=True):
    """One stream's work within the steps, or within the GPU's span; the longest first."""

    stream: Annotated[int, key("Stream", "Stream.")]
    work: Annotated[str, column("Mostly", "What takes most of its time: `compute`, `comm` or `memory`.")]
    busy_ns: Annotated[int, column("Busy", "Time with any of its work running, each instant once.", total=True)]
    alone_ns: Annotated[
        int,
        column("Alone", "Of that, with no other stream's work running.", total=True),
    ]
    hidden: Annotated[
        float, column("Hidden", "Share of its busy time in which another stream's work ran too.", "share")
    ]
