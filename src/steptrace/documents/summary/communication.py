"""Of a trace and of all ranks: collectives, all-reduces, and who waited for whom."""

from typing import Annotated, Literal

import msgspec

from steptrace.documents.base import Document, field


class CollectiveName(Document, frozen=True):
    """The collectives of one name and process group."""

    collective: Annotated[str, field("`all_reduce`, ..., or the kernel's short name.")]
    group: Annotated[str | None, field("Process group.")]
    count: Annotated[int, field("How many.")]
    sum_ns: Annotated[int, field("Summed length.", "ns")]
    mean_ns: Annotated[float, field("Mean length.", "ns")]
    median_ns: Annotated[float, field("Median length.", "ns")]
    max_ns: Annotated[int, field("Longest.", "ns")]
    exposed_ns: Annotated[int | None, field("Of the summed length, not hidden by computation.", "ns")]
    bytes: Annotated[int | None, field("Bytes, if said for all.", "B")]
    hidden_pct: Annotated[float | None, field("Share of its own length under computation.", "%")]


class CollectivesOfStep(Document, frozen=True):
    """The collectives that one step launched."""

    index: Annotated[int, field("The N of `ProfilerStep#N`.")]
    count: Annotated[int, field("How many.")]
    sum_ns: Annotated[int, field("Summed length.", "ns")]
    exposed_ns: Annotated[int | None, field("Of that, not hidden by computation.", "ns")]


class Collectives(Document, frozen=True):
    """What a rank communicated."""

    count: Annotated[int, field("Collectives.")]
    by_name: Annotated[tuple[CollectiveName, ...], field("By name and group, the most exposed first.")]
    by_step: Annotated[tuple[CollectivesOfStep, ...], field("Each step.")]


class AllReduceOfStep(Document, frozen=True):
    """The all-reduces that one step launched, each instant once."""

    index: Annotated[int, field("The N of `ProfilerStep#N`.")]
    count: Annotated[int, field("How many.")]
    bytes: Annotated[int | None, field("Bytes.", "B")]
    measured_ns: Annotated[int, field("Union of their spans, waiting for other ranks included.", "ns")]
    exposed_ns: Annotated[int | None, field("Of that, not hidden by computation.", "ns")]


class AllReduce(Document, frozen=True):
    """The all-reduces of a trace, each instant once; per step null without steps."""

    source: Annotated[Literal["gpu", "host"], field("Where they ran.")]
    count: Annotated[int, field("How many.")]
    bytes: Annotated[int | None, field("Bytes; null unless said for all.", "B")]
    measured_ns: Annotated[int, field("Union of their spans.", "ns")]
    exposed_ns: Annotated[int | None, field("Of that, not hidden by computation.", "ns")]
    overlap: Annotated[float | None, field("Share that computation hid.")]
    count_per_step: Annotated[float | None, field("Per step.")]
    bytes_per_step: Annotated[float | None, field("Per step.", "B")]
    measured_ns_per_step: Annotated[float | None, field("Per step.", "ns")]
    exposed_ns_per_step: Annotated[float | None, field("Per step.", "ns")]
    by_step: Annotated[tuple[AllReduceOfStep, ...], field("Each step.")]


class Redundant(Document, frozen=True):
    """All-reduces of gradients before the last pass of a step, over all steps."""

    count: Annotated[int, field("How many.")]
    bytes: Annotated[int | None, field("Bytes.", "B")]
    measured_ns: Annotated[int, field("Union of their spans.", "ns")]


class ReducePasses(Document, frozen=True):
    """Passes of a step by DistributedDataParallel's labels."""

    passes_per_step: Annotated[float, field("Forward passes per step.")]
    redundant: Annotated[Redundant, field("What need not have been reduced.")]


class Straggler(Document, frozen=True):
    """The rank that the others wait for most."""

    rank: Annotated[int, field("Rank.")]
    share: Annotated[float, field("Of all waiting, what it caused.")]
    caused_ns: Annotated[int, field("That waiting.", "ns")]
    delay_ns: Annotated[int, field("How much sooner its collectives could have begun.", "ns")]


class MatchedName(Document, frozen=True):
    """Matched collectives of one name and group."""

    collective: Annotated[str, field("Collective.")]
    group: Annotated[str | None, field("Process group.")]
    count: Annotated[int, field("How many.")]
    wait_ns: Annotated[int, field("Waiting in them, over the ranks.", "ns")]


class RankCollectives(Document, frozen=True):
    """The collectives of all ranks."""

    total: Annotated[int, field("All of all ranks.")]
    matched: Annotated[int, field("Parts found on another rank too.")]
    matched_by: Annotated[dict[str, int], field("How they were matched.")]
    by_name: Annotated[tuple[MatchedName, ...], field("By name and group, most waiting first.")]


class RankAllReduce(Document, frozen=True):
    """All-reduces per step, medians over the ranks, beside what they should take at the measured bandwidth."""

    source: Annotated[str, field("`gpu` or `host`.")]
    count_per_step: Annotated[float | None, field("How many.")]
    bytes_per_step: Annotated[float | None, field("Bytes.", "B")]
    measured_ns_per_step: Annotated[float | None, field("Union of their spans.", "ns")]
    exposed_ns_per_step: Annotated[float | None, field("Of that, not hidden by computation.", "ns")]
    overlap: Annotated[float | None, field("Share that computation hid.")]
    wait_ns_per_step: Annotated[float | None, field("Waiting for other ranks, mean over the ranks.", "ns")]
    expected_ns: Annotated[int | None, field("parameter bytes x 2(n-1)/n / measured bandwidth.", "ns")]
    simplified_ns: Annotated[int | None, field("parameters x 4 / measured bandwidth.", "ns")]
    bus_bytes_per_s: Annotated[float | None, field("Measured bus bandwidth.", "B/s")]


class RankWait(Document, frozen=True):
    """One rank of a job: how far its clock is off, how long it waited in collectives, and for how long others did
    because of it."""

    rank: Annotated[int, field("Rank, or the trace's place in the list where traces do not say.")]
    clock_offset_ns: Annotated[int | None, field("Added to its times to align them; null if it shares nothing.", "ns")]
    clock_spread_ns: Annotated[int | None, field("Half the width of what the offset is the median of.", "ns")]
    collectives: Annotated[int, field("Its collectives.")]
    matched: Annotated[int, field("Those found on another rank too.")]
    last: Annotated[int, field("Of the matched: it was the last to arrive.")]
    wait_ns: Annotated[
        int | None, field("Its time in matched collectives before the last rank arrived, each instant once.", "ns")
    ]
    caused_ns: Annotated[int | None, field("Other ranks' waiting where it was last, added up over the ranks.", "ns")]
    delay_ns: Annotated[
        int | None, field("How much sooner these could have begun without it: last less second-last.", "ns")
    ]


class RankKernel(Document, frozen=True):
    """One kernel's time on each rank (by class and name), as a distribution over the ranks that ran it."""

    name: Annotated[str, field("Name as recorded.")]
    short_name: Annotated[str, field("Name as a person would say it.")]
    class_: Annotated[str, field("`compute`, `comm` or `memory`.")] = msgspec.field(name="class")
    ranks: Annotated[int, field("Ranks that ran it.")]
    count: Annotated[int, field("Times it ran, on all ranks.")]
    sum_ns: Annotated[int, field("Its time on all ranks.", "ns")]
    sum_min_ns: Annotated[int, field("Least time on a rank.", "ns")]
    sum_median_ns: Annotated[float, field("Median over the ranks of its time.", "ns")]
    sum_max_ns: Annotated[int, field("Most time on a rank.", "ns")]
    mean_min_ns: Annotated[float, field("Least mean length on a rank.", "ns")]
    mean_median_ns: Annotated[float, field("Median over the ranks of its mean length.", "ns")]
    mean_max_ns: Annotated[float, field("Greatest mean length on a rank.", "ns")]
    slowest_rank: Annotated[int, field("Rank with the greatest mean length.")]
