"""Exposed communication of a step, divided into waiting for other ranks and transfer."""

from dataclasses import dataclass
from typing import Protocol

from steptrace.findings.window import Window


@dataclass(frozen=True)
class Exposed:
    """Communication of a step that no computation hides, in ns.

    `wait_ns` is the part of it that is waiting for other ranks; None where the traces of some were not read.
    `least_wait_ns` is then the part that is waiting for those that were.
    """

    all_ns: float
    wait_ns: float | None
    least_wait_ns: float | None = None

    @property
    def transfer_ns(self) -> float | None:
        """The exposed time without the waiting; None where the waiting is not known."""
        return None if self.wait_ns is None else self.all_ns - self.wait_ns

    @property
    def known_wait_ns(self) -> float | None:
        """The waiting for the ranks that were read."""
        return self.least_wait_ns if self.wait_ns is None else self.wait_ns

    @property
    def counted_ns(self) -> float:
        """The transfer; all of the exposed time where the waiting is not known."""
        return self.all_ns if self.transfer_ns is None else self.transfer_ns


def exposed_in(window: Window) -> Exposed | None:
    """The exposed communication of the GPU's collectives, or of all-reduces on the host; None if unknown."""
    entry = window.entry

    def exposed(all_ns: float, wait_ns: int | None, least_wait_ns: int | None = None) -> Exposed:
        if wait_ns is None and entry.world_size == 1:
            wait_ns = 0  # there is nobody to wait for
        waits = (None if ns is None else window.per_step(ns) for ns in (wait_ns, least_wait_ns))
        return Exposed(all_ns, *waits)

    if window.parts:
        divided = entry.overview
        if divided is None:
            return exposed(window.parts["exposed_comm"], None)
        return exposed(window.parts["exposed_comm"], divided.exposed_wait_ns, divided.least_exposed_wait_ns)
    reduces = entry.all_reduce
    if reduces is None or reduces.exposed_ns is None:
        return None
    return exposed(window.per_step(reduces.exposed_ns), reduces.exposed_wait_ns)


def most_exposed_wait_ns(windows: list[Window], *, without: int | None) -> float | None:
    """The longest exposed waiting of a rank for those that were read, in a step; None where it is not known.

    Args:
        windows: of the ranks' traces.
        without: a rank to leave out.
    """
    exposed = [exposed_in(window) for window in windows if window.entry.rank is None or window.entry.rank != without]
    waits = [of_rank.known_wait_ns for of_rank in exposed if of_rank is not None]
    return max((ns for ns in waits if ns is not None), default=None)


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
