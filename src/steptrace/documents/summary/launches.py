"""Of a trace: host synchronisations, launches, queues and copies."""

from typing import Annotated

from steptrace.documents.base import Document, field
from steptrace.documents.rows import LaunchCall


class Place(Document, frozen=True):
    """A place in the program."""

    file: Annotated[str | None, field("File of the first frame that is neither PyTorch's nor steptrace's.")]
    line: Annotated[int | None, field("Line in it; of backward work that of the forward operator.")]
    function: Annotated[str | None, field("Function that the line stands in.")]
    op: Annotated[str | None, field("Innermost operator.")]
    label: Annotated[str | None, field("Innermost `record_function` label.")]
    phase: Annotated[str | None, field("Part of the step.")]
    code: Annotated[str | None, field("Text of the line.")]


class SyncSite(Place, frozen=True):
    """The counted synchronisations of one kind at one place."""

    kind: Annotated[str, field("The call, or `d2h_copy`, `h2d_copy`.")]
    count: Annotated[int, field("Synchronisations.")]
    blocked_ns: Annotated[int, field("Time the host was blocked in them.", "ns")]
    exposed_idle_ns: Annotated[int | None, field("GPU idle time that they expose.", "ns")]
    count_per_step: Annotated[float | None, field("Per step.")]
    blocked_ns_per_step: Annotated[float | None, field("Per step.", "ns")]
    exposed_idle_ns_per_step: Annotated[float | None, field("Per step.", "ns")]
    ceiling_ns: Annotated[int | None, field("What all steps could be shorter by at most, were they gone.", "ns")]
    saved_ns: Annotated[int | None, field("What the dependency graph saves without them, over all steps.", "ns")]


class Syncs(Document, frozen=True):
    """Host synchronisations of a trace."""

    count: Annotated[int, field("Counted ones: on training threads, in steps.")]
    per_step: Annotated[float | None, field("Mean per step; null where nothing could have been seen.")]
    by_step: Annotated[tuple[int, ...] | None, field("Each step's count.")]
    blocked_ns: Annotated[int, field("Time the host was blocked.", "ns")]
    exposed_idle_ns: Annotated[int | None, field("GPU idle time exposed.", "ns")]
    caused_idle_ns: Annotated[int | None, field("Of that, in gaps whose cause is a sync.", "ns")]
    by_kind: Annotated[dict[str, int], field("Counts by kind.")]
    outside_steps: Annotated[int, field("Not counted: outside the steps.")]
    other_threads: Annotated[int, field("Not counted: on threads without training work.")]
    sites: Annotated[tuple[SyncSite, ...], field("By place, the most blocking first.")]


class WhatIf(Document, frozen=True):
    """How well the dependency model explains the trace, and what is saved without any counted sync."""

    steps: Annotated[int, field("Steps; 0: the whole trace.")]
    measured_ns: Annotated[int, field("Measured time of all steps.", "ns")]
    replayed_ns: Annotated[int, field("The model's, with nothing removed.", "ns")]
    error: Annotated[
        float,
        field("Modelled over measured time, less 1: activities that overlap on one stream run one after the other."),
    ]
    unexplained_ns: Annotated[int, field("Waiting of the GPU taken over without a known cause.", "ns")]
    reason: Annotated[str | None, field("Why nothing is predicted; null if the model fits.")]
    all_saved_ns: Annotated[int | None, field("Saved over all steps without any counted sync.", "ns")]
    all_ceiling_ns: Annotated[int, field("What that could be at most.", "ns")]


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


class QueueSeries(Document, frozen=True):
    """The queue of one stream, in equally long buckets."""

    stream: Annotated[int, field("Stream.")]
    mean: Annotated[tuple[float, ...], field("Mean length.")]
    max: Annotated[tuple[float, ...], field("Greatest length.")]


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
