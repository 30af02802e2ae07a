"""Exposed communication of a step, divided into waiting for other ranks and transfer."""

from dataclasses import dataclass
from typing import Protocol

from steptrace.findings.window import Window


@dataclass(frozen=True)
class Exposed:
    """Communication of a step that no computation hides, in ns.

    `wait_ns` is the part of it that is waiting for other ranks; None where only one rank's trace was read.
    """

    all_ns: float
    wait_ns: float | None

    @property
    def transfer_ns(self) -> float:
        """The exposed time without the waiting; an upper bound where the waiting is not known."""
        return self.all_ns - (self.wait_ns or 0.0)


def exposed_in(window: Window) -> Exposed | None:
    """The exposed communication of the GPU's collectives, or of all-reduces on the host; None if unknown."""
    entry = window.entry
    if window.parts:
        wait_ns = None if entry.overview is None else entry.overview.exposed_wait_ns
        return Exposed(window.parts["exposed_comm"], None if wait_ns is None else window.per_step(wait_ns))
    reduces = entry.all_reduce
    if reduces is None or reduces.exposed_ns is None:
        return None
    wait_ns = reduces.exposed_wait_ns
    return Exposed(window.per_step(reduces.exposed_ns), None if wait_ns is None else window.per_step(wait_ns))


def most_exposed_wait_ns(windows: list[Window], *, without: int | None) -> float | None:
    """The longest exposed waiting of a rank in a step, one rank left out; None where it is not known."""
    waits = [
        exposed.wait_ns
        for window in windows
        if window.entry.rank is None or window.entry.rank != without
        if (exposed := exposed_in(window)) is not None and exposed.wait_ns is not None
    ]
    return max(waits, default=None)


class _Collectives(Protocol):
    """Collectives of one name, in a trace or in a step."""

    @property
    def exposed_ns(self) -> float | None:
        """Their time that no computation hides; None where that is not known."""

    @property
    def exposed_transfer_ns(self) -> float | None:
        """The part of it that is not waiting for other ranks; None where that is not known."""


def exposed_transfer_ns(collectives: _Collectives) -> float:
    """The exposed time of collectives, without waiting where that is known; 0 where nothing is."""
    known = collectives.exposed_transfer_ns
    return (collectives.exposed_ns if known is None else known) or 0.0
