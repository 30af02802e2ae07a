"""Figures of copies."""

from typing import Annotated

from steptrace.documents.base import Document, Row, column, described, field, key


class CopyRate(Document, frozen=True):
    """The rate at which one kind of copy moves bytes, from this instant to the kind's next row."""

    device: Annotated[int, key("GPU", "GPU.", local=True)]
    kind: Annotated[str, key("Kind", "The copy as recorded, such as `Memcpy HtoD (Pinned -> Device)`, or `Memset`.")]
    ts: Annotated[int, key("At", "Instant.", local=True)]
    running: Annotated[int, column("Running", "Copies under way.", plain=True)]
    bytes_per_second: Annotated[float, column("Rate", "Sum of their rates, each its bytes over its length.")]


@described(
    """The copies (or sets) of one kind on one GPU; rates are weighted by time while any of them runs.

    A copy's rate is its bytes over its length; what runs at once adds up. Copies of less than 64 KiB mostly take the
    time to start: their rate says nothing of the link.
    """
)
class Copy(Row, frozen=True):
    device: Annotated[int, key("GPU", "GPU.", local=True)]
    kind: Annotated[str, key("Kind", "The copy as recorded, or `Memset`.")]
    count: Annotated[int, column("Count", "How many.", kind="total", plain=True)]
    unsized: Annotated[
        int, column("Without bytes", "Of these, without bytes or length: no part of the rates.", kind="total")
    ]
    bytes: Annotated[int | None, column("Bytes", "Bytes moved, of the copies that say it.", kind="total")]
    ns: Annotated[int, column("Time", "Time with any of them running, each instant once.", kind="total")]
    mean_bytes_per_second: Annotated[
        float | None, column("Mean", "Rate over the time that any that says its bytes ran.", kind="rate")
    ]
    median_bytes_per_second: Annotated[float | None, field("Rate not exceeded half of that time.", kind="rate")]
    max_bytes_per_second: Annotated[float | None, column("Highest", "Highest rate at any instant.", kind="max")]
    median_bytes: Annotated[float | None, column("Median size", "Median size of one.", kind="mean")]
