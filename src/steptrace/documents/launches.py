"""Figures of launches."""

from typing import Annotated

from steptrace.documents.base import Document, Row, column, described, field, key
from steptrace.format import duration
from steptrace.limits import EXCESS_DELAY_NS, SLOW_LAUNCH_NS


class Distribution(Document, frozen=True):
    """One time of all launches."""

    sum: Annotated[int, field("Sum.", kind="sum")]
    median: Annotated[float, column("Median", "Median.", "ns", kind="mean", plain=True)]
    p95: Annotated[float, column("p95", "95th percentile.", "ns", kind="mean", plain=True)]
    max: Annotated[int, column("Longest", "Largest.", "ns", kind="max", plain=True)]


#: The figures of the launches of one call, and of all calls.
_Short = Annotated[int, column("Short kernels", "Launches whose work takes less time than the call.", kind="total")]
_Slow = Annotated[int, column("Slow launches", f"Calls of more than {duration(SLOW_LAUNCH_NS)}.", kind="total")]
_Excess = Annotated[
    int, column("Excess delays", f"Launches with more than {duration(EXCESS_DELAY_NS)} of latency.", kind="total")
]


@described("The launches of one GPU by one call.")
class LaunchCall(Row, frozen=True):
    call: Annotated[str, key("Call", "Name of the call.")]
    kind: Annotated[str, key("Kind", "`kernel`, `graph`, `copy` or `set`.")]
    count: Annotated[int, column("Launches", "Launches.", kind="total", plain=True)]
    activities: Annotated[int, column("Activities", "GPU activities they caused.", kind="total")]
    host_ns: Annotated[int, column("Host time", "Summed length of the calls.", kind="total")]
    device_ns: Annotated[int, column("GPU time", "Summed time of their work.", kind="total")]
    delay_ns: Annotated[int, field("Summed delay.", kind="sum")]
    queueing_ns: Annotated[
        int,
        column("Queueing", "The part of the delay while earlier work of the stream was still to finish.", kind="total"),
    ]
    dependency_ns: Annotated[int, field("Summed waiting for events.", kind="sum")]
    latency_ns: Annotated[int, column("Latency", "The rest of the delay, with the stream free.", kind="total")]
    short_kernels: _Short
    slow_launches: _Slow
    excess_delays: _Excess


@described(
    """How the work of the analysed GPU was launched.

    Delay is the time from the end of the launching call to the start of its work; none if the work began first. A
    graph's one launch holds all its kernels.
    """
)
class Launches(Document, frozen=True):
    count: Annotated[int, column("Launches", "Launching calls.", kind="total", plain=True)]
    activities: Annotated[int, column("GPU activities", "GPU activities with a known launch.", kind="total")]
    unlinked: Annotated[int, column("Activities without launch", "GPU activities without.", kind="sum", plain=True)]
    short_kernels: _Short
    slow_launches: _Slow
    excess_delays: _Excess
    host_ns: Annotated[Distribution | None, field("Length of the calls.")]
    device_ns: Annotated[Distribution | None, field("Time of their work.")]
    delay_ns: Annotated[Distribution | None, field("From a call's end to its work's start.")]
    queueing_ns: Annotated[Distribution | None, field("Of the delay, behind earlier work of the stream.")]
    dependency_ns: Annotated[Distribution | None, field("Of the rest, waiting for an event.")]
    latency_ns: Annotated[Distribution | None, field("Of the rest, with the stream free.")]
    by_call: Annotated[tuple[LaunchCall, ...], field("By call.")]

    @property
    def is_empty(self) -> bool:
        """Whether no launch is known."""
        return not self.count
