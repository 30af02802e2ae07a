"""Figures of several ranks together."""

from typing import Annotated

import msgspec

from steptrace.documents.base import Document, column, field, key
from steptrace.documents.finding import Finding


class Straggler(Document, frozen=True):
    """The rank that the others wait for most."""

    rank: Annotated[
        int | None,
        column(
            "Rank of the straggler",
            "The rank that causes clearly more waiting than an even share (3/4 of it with two ranks), beyond the "
            "clocks' uncertainty; null where the runs of a variant disagree.",
            runs="same",
        ),
    ]
    share: Annotated[float, column("Waiting for it", "Of all waiting, what it caused.", "share")]
    caused_ns: Annotated[int, column("Made others wait", "That waiting, added up over the ranks.", total=True)]
    delay_ns: Annotated[
        int, column("Delay", "How much sooner the collectives could have begun without its delays.", total=True)
    ]


class MatchedName(Document, frozen=True):
    """Matched collectives of one name and group."""

    collective: Annotated[str, key("Collective", "Collective.")]
    group: Annotated[str | None, key("Process group", "Process group.")]
    count: Annotated[int, column("Matched", "How many.", total=True)]
    wait_ns: Annotated[int, column("Waited, all ranks", "Waiting in them, over the ranks.", total=True)]


class RankCollectives(Document, frozen=True):
    """The collectives of all ranks."""

    total: Annotated[int, field("All of all ranks.")]
    matched: Annotated[
        int,
        column(
            "Matching",
            "By process group and number; on a host (gloo) by order of its size in the step; without numbers by time.",
        ),
    ]
    matched_by: Annotated[dict[str, int], field("How they were matched.")]
    by_name: Annotated[tuple[MatchedName, ...], field("By name and group, most waiting first.")]


class RankAllReduce(Document, frozen=True):
    """All-reduces per step, medians over the ranks, beside what they should take at the measured bandwidth."""

    source: Annotated[str, field("`gpu` or `host`.")]
    count_per_step: Annotated[float | None, column("All-reduces", "How many.")]
    bytes_per_step: Annotated[float | None, column("Bytes", "Bytes.")]
    measured_ns_per_step: Annotated[
        float | None,
        column(
            "Measured", "Time of a profiled step with an all-reduce under way, waiting included, median over the ranks."
        ),
    ]
    exposed_ns_per_step: Annotated[float | None, column("Exposed", "Of that, not hidden by computation.")]
    overlap: Annotated[float | None, column("Hidden", "Share that computation hid.", "share")]
    wait_ns_per_step: Annotated[
        float | None,
        column(
            "Waited",
            "From a rank's arrival in an all-reduce to the last rank's, each instant once; mean over the ranks.",
        ),
    ]
    expected_ns: Annotated[
        int | None, column("Expected", "Parameter bytes × 2(n−1)/n ÷ the run's measured bus bandwidth.")
    ]
    simplified_ns: Annotated[int | None, column("Simpler formula", "Parameters × 4 bytes ÷ that bandwidth.")]
    bus_bytes_per_s: Annotated[float | None, column("Bus bandwidth", "Measured bus bandwidth.")]


class RankWait(Document, frozen=True):
    """One rank of a job: how far its clock is off, how long it waited in collectives, and for how long others did
    because of it."""

    rank: Annotated[int, key("Rank", "Rank, or the trace's place in the list where traces do not say.")]
    clock_offset_ns: Annotated[
        int | None, column("Clock offset", "Added to its times to align them; not measured if it shares no collective.")
    ]
    clock_spread_ns: Annotated[int | None, column("Uncertainty", "Half the spread of the values whose median it is.")]
    collectives: Annotated[int, column("Collectives", "Its collectives.", total=True)]
    matched: Annotated[int, column("Matched", "Those that ran on another rank.", total=True)]
    last: Annotated[int, column("Last to arrive", "Of the matched: it was the last to arrive.", total=True)]
    wait_ns: Annotated[
        int | None,
        column(
            "Waited", "Its time in matched collectives before the last rank arrived, each instant once.", total=True
        ),
    ]
    caused_ns: Annotated[
        int | None,
        column("Made others wait", "Other ranks' waiting where it was last, added up over the ranks.", total=True),
    ]
    delay_ns: Annotated[
        int | None,
        column("Delay", "How much sooner these could have begun without it: last less second-last.", total=True),
    ]


class RankKernel(Document, frozen=True):
    """One kernel's time on each rank (by class and name), as a distribution over the ranks that ran it.

    A rank whose kernels are all longer has a slower GPU; one that is longer in a few has other data. A collective's
    length holds its waiting, so there the rank with the shortest is the one waited for.
    """

    name: Annotated[str, key("", "Name as recorded.")]
    short_name: Annotated[str, column("Kernel", "Short name.")]
    class_: Annotated[str, key("Class", "`compute`, `comm` or `memory`.")] = msgspec.field(name="class")
    ranks: Annotated[int, column("Ranks", "Ranks that ran it.")]
    count: Annotated[int, field("Times it ran, on all ranks.")]
    sum_ns: Annotated[int, column("Time, all ranks", "Its time on all ranks.", total=True)]
    mean_min_ns: Annotated[float, column("Least mean length", "Least mean length on a rank.")]
    mean_median_ns: Annotated[float, column("Median", "Median over the ranks of its mean length.")]
    mean_max_ns: Annotated[float, column("Greatest", "Greatest mean length on a rank.")]
    slowest_rank: Annotated[int, column("Slowest rank", "Rank with the greatest mean length.")]


class Ranks(Document, frozen=True):
    """How the ranks of one job differ."""

    count: Annotated[int, field("Ranks.")]
    straggler: Annotated[Straggler | None, field("The rank that the others wait for most; null if none stands out.")]
    waits: tuple[RankWait, ...]
    collectives: RankCollectives
    kernels: tuple[RankKernel, ...]
    all_reduce: RankAllReduce | None
    findings: tuple[Finding, ...] = ()
