"""Of a trace: launches and copies."""

from typing import Annotated

from steptrace.documents.base import Document, field
from steptrace.documents.queues import QueueSeries
from steptrace.documents.rows import LaunchCall


class Distribution(Document, frozen=True):
    """One time of all launches."""

    sum: Annotated[int, field("Sum.", "ns")]
    median: Annotated[float, field("Median.", "ns")]
    p95: Annotated[float, field("95th percentile.", "ns")]
    max: Annotated[int, field("Largest.", "ns")]


class LaunchOperator(Document, frozen=True):
    """The launches of one operator."""

    op: Annotated[str, field("Operator.")]
    count: Annotated[int, field("Launches.")]
    host_ns: Annotated[int, field("Summed length of the calls.", "ns")]
    device_ns: Annotated[int, field("Summed time of their work.", "ns")]
    delay_ns: Annotated[int, field("Summed delay.", "ns")]
    queueing_ns: Annotated[int, field("Summed queueing.", "ns")]
    dependency_ns: Annotated[int, field("Summed waiting for events.", "ns")]
    latency_ns: Annotated[int, field("Summed launch latency.", "ns")]
    short_kernels: Annotated[int, field("Launches whose work takes less time than the call.")]
    slow_launches: Annotated[int, field("Calls of more than 50 us.")]
    excess_delays: Annotated[int, field("Launches with more than 100 us of latency.")]


class Launches(Document, frozen=True):
    """How the work of the analysed GPU was launched."""

    count: Annotated[int, field("Launching calls.")]
    activities: Annotated[int, field("GPU activities with a known launch.")]
    unlinked: Annotated[int, field("GPU activities without.")]
    short_kernels: Annotated[int, field("Launches whose work takes less time than the call.")]
    slow_launches: Annotated[int, field("Calls of more than 50 us.")]
    excess_delays: Annotated[int, field("Launches with more than 100 us of latency.")]
    host_ns: Annotated[Distribution | None, field("Length of the calls.")]
    device_ns: Annotated[Distribution | None, field("Time of their work.")]
    delay_ns: Annotated[Distribution | None, field("From a call's end to its work's start.")]
    queueing_ns: Annotated[Distribution | None, field("Of the delay, behind earlier work of the stream.")]
    dependency_ns: Annotated[Distribution | None, field("Of the rest, waiting for an event.")]
    latency_ns: Annotated[Distribution | None, field("Of the rest, with the stream free.")]
    by_call: Annotated[tuple[LaunchCall, ...], field("By call.")]
    by_op: Annotated[tuple[LaunchOperator, ...], field("By operator, most host time first.")]


class CopySeries(Document, frozen=True):
    """The rate of one kind of copy, in equally long buckets."""

    kind: Annotated[str, field("Kind of copy.")]
    mean: Annotated[tuple[float, ...], field("Mean rate.", "B/s")]
    max: Annotated[tuple[float, ...], field("Highest rate.", "B/s")]


class Series(Document, frozen=True):
    """Queues and copies of the analysed GPU over time, small enough to draw."""

    edges: Annotated[tuple[int, int], field("First and last instant of the buckets.", "ns")]
    queues: Annotated[tuple[QueueSeries, ...], field("The busiest streams.")]
    copies: Annotated[tuple[CopySeries, ...], field("The kinds with the most bytes.")]
