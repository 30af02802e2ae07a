"""Figures of several ranks together."""

from typing import Annotated

import msgspec

from steptrace.documents.base import Document, InRuns, Row, column, described, field, key
from steptrace.documents.communication import ExpectedBy
from steptrace.documents.finding import Finding
from steptrace.documents.timeline import RankTimeline


class Straggler(Document, frozen=True):
    """The rank that the others wait for most."""

    rank: Annotated[
        int | None,
        column(
            "Rank of the straggler",
            "The rank that causes clearly more waiting than an even share (3/4 of it with two ranks), beyond the "
            "clocks' uncertainty; null where the runs of a variant disagree.",
            kind="fact",
        ),
    ]
    share: Annotated[float, column("Waiting for it", "Of all waiting, what it caused.", "share", kind="share")]
    caused_ns: Annotated[int, column("Made others wait", "That waiting, added up over the ranks.", kind="total")]
    delay_ns: Annotated[
        int, column("Delay", "How much sooner the collectives could have begun without its delays.", kind="total")
    ]


@described("Matched collectives of one name and group.")
class MatchedName(Row, frozen=True):
    collective: Annotated[str, key("Collective", "Collective.")]
    group: Annotated[str | None, key("Process group", "Process group.")]
    count: Annotated[int, column("Matched", "How many.", kind="total", plain=True)]
    wait_ns: Annotated[
        int | None,
        column(
            "Waited, all ranks",
            "Waiting over the ranks, in those that the traces of all ranks of the group hold; null if there are none.",
            kind="total",
        ),
    ]
    complete: Annotated[int | None, field("How many the traces of all ranks of the group hold.", kind="sum")] = None
    least_wait_ns: Annotated[
        int | None,
        field(
            "Where ranks were not read: waiting in all of them for those that were, over the ranks. Otherwise null.",
            kind="sum",
        ),
    ] = None


class RankCollectives(Document, frozen=True):
    """The collectives of all ranks."""

    total: Annotated[int, field("All of all ranks.", kind="sum")]
    matched: Annotated[
        int,
        column(
            "Matching",
            "By process group and number; on a host (gloo) by order of its size in the step; without numbers by time.",
            kind="sum",
        ),
    ]
    matched_by: Annotated[dict[str, int], field("How they were matched.", kind="sum")]
    by_name: Annotated[tuple[MatchedName, ...], field("By name and group, most waiting first.")]


class RankAllReduce(Document, frozen=True):
    """All-reduces per step, medians over the ranks, beside what they should take at the measured bandwidth."""

    source: Annotated[str, field("`gpu` or `host`.")]
    count_per_step: Annotated[float | None, column("All-reduces", "How many.", kind="rate", plain=True)]
    bytes_per_step: Annotated[float | None, column("Bytes", "Bytes.", kind="rate", plain=True)]
    measured_ns_per_step: Annotated[
        float | None,
        column(
            "Measured",
            "Time of a profiled step with an all-reduce under way, waiting included, median over the ranks.",
            kind="rate",
        ),
    ]
    exposed_ns_per_step: Annotated[float | None, column("Exposed", "Of that, not hidden by computation.", kind="rate")]
    overlap: Annotated[float | None, column("Hidden", "Share that computation hid.", "share", kind="share")]
    wait_ns_per_step: Annotated[
        float | None,
        column(
            "Waited",
            "From a rank's arrival in an all-reduce to the last rank's, each instant once; mean over the ranks.",
            kind="rate",
        ),
    ]
    expected_ns: Annotated[
        int | None, column("Expected", "Parameter bytes × 2(n−1)/n ÷ the run's measured bus bandwidth.", kind="mean")
    ]
    simplified_ns: Annotated[
        int | None, column("Simpler formula", "Parameters × 4 bytes ÷ that bandwidth.", kind="mean")
    ]
    bus_bytes_per_s: Annotated[
        float | None, column("Bus bandwidth", "Measured bus bandwidth.", kind="rate", plain=True)
    ]
    link_ns_per_step: Annotated[
        float | None,
        column(
            "Expected of the link",
            "What messages of these sizes take: at the bandwidth of `analyze --bandwidth`, or as NCCL is published to "
            "take.",
            kind="rate",
        ),
    ] = None
    link_by: Annotated[
        ExpectedBy | None,
        field(
            "`given`: the bandwidth of `analyze --bandwidth`. `published`: NCCL's times on this GPU, on one machine. "
            "`nvlink`, `pcie`: such times of another GPU, by the ratio of their links' data sheets."
        ),
    ] = None


@described(
    """One rank of a job: how far its clock is off, how long it waited in collectives, and for how long others did
    because of it.
    """
)
class RankWait(Row, frozen=True):
    rank: Annotated[int, key("Rank", "Rank, or the trace's place in the list where traces do not say.")]
    clock_offset_ns: Annotated[
        int | None,
        column(
            "Clock offset", "Added to its times to align them; not measured if it shares no collective.", kind="mean"
        ),
    ]
    clock_spread_ns: Annotated[
        int | None, column("Uncertainty", "Half the spread of the values whose median it is.", kind="mean")
    ]
    collectives: Annotated[int, column("Collectives", "Its collectives.", kind="total", plain=True)]
    matched: Annotated[int, column("Matched", "Those that ran on another rank that was read.", kind="total")]
    last: Annotated[
        int | None,
        column(
            "Last to arrive",
            "Of the matched that the traces of all their ranks hold: it was the last to arrive.",
            kind="total",
        ),
    ]
    wait_ns: Annotated[
        int | None,
        column(
            "Waited",
            "Its time in these before the last rank arrived, each instant once; null if there are none.",
            kind="total",
        ),
    ]
    caused_ns: Annotated[
        int | None,
        column("Made others wait", "Other ranks' waiting where it was last, added up over the ranks.", kind="total"),
    ]
    delay_ns: Annotated[
        int | None,
        column("Delay", "How much sooner these could have begun without it: last less second-last.", kind="total"),
    ]
    complete: Annotated[int | None, field("Of the matched: the traces of all their ranks hold them.", kind="sum")] = (
        None
    )
    least_wait_ns: Annotated[
        int | None,
        field(
            "Where ranks were not read: its time in all matched collectives before the last of those that were read "
            "arrived. Otherwise null.",
            kind="sum",
        ),
    ] = None


@described(
    """One kernel's time on each rank (by class and name), as a distribution over the ranks that ran it.

    A rank whose kernels are all longer has a slower GPU; one that is longer in a few has other data. A collective's
    length holds its waiting, so there the rank with the shortest is the one waited for.
    """
)
class RankKernel(Row, frozen=True):
    name: Annotated[str, key("", "Name as recorded.")]
    short_name: Annotated[str, column("Kernel", "Short name.", plain=True)]
    class_: Annotated[str, key("Class", "`compute`, `comm` or `memory`.")] = msgspec.field(name="class")
    ranks: Annotated[int, column("Ranks", "Ranks that ran it.", kind="max")]
    count: Annotated[int, field("Times it ran, on all ranks.", kind="sum")]
    sum_ns: Annotated[int, column("Time, all ranks", "Its time on all ranks.", kind="total")]
    mean_min_ns: Annotated[float, column("Least mean length", "Least mean length on a rank.", kind="min")]
    mean_median_ns: Annotated[float, column("Median", "Median over the ranks of its mean length.", kind="mean")]
    mean_max_ns: Annotated[float, column("Greatest", "Greatest mean length on a rank.", kind="max")]
    slowest_rank: Annotated[
        int | None,
        column("Slowest rank", "Rank with the greatest mean length; null where runs disagree.", kind="fact"),
    ]


class Ranks(Document, frozen=True):
    """How the ranks of one job differ."""

    count: Annotated[int, field("Ranks whose traces were read.", kind="first")]
    straggler: Annotated[Straggler | None, field("The rank that the others wait for most; null if none stands out.")]
    waits: tuple[RankWait, ...]
    collectives: RankCollectives
    kernels: tuple[RankKernel, ...]
    all_reduce: RankAllReduce | None
    findings: tuple[Finding, ...] = ()
    in_single_ranks: Annotated[
        tuple[Finding, ...],
        field(
            "What is found in the ranks' own traces, each rule and line once: as on the rank where it costs most.",
            kind="first",
        ),
    ] = ()
    timeline: Annotated[
        RankTimeline | None,
        field(
            "One step of several ranks on one clock: a lane a rank with the parts of its GPU's time, or without a GPU "
            "of its step; null if they share no step.",
            kind="first",
        ),
    ] = None
    not_read: Annotated[
        int, field("Ranks of the job whose traces were not read; waiting for them is not known.", kind="first")
    ] = 0
    runs: InRuns = msgspec.UNSET
