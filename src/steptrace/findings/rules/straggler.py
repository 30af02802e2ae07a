"""One rank comes last to collectives, and the others wait for it."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Annotated, Final

from steptrace.documents.base import Document, field
from steptrace.documents.finding import Source
from steptrace.documents.ranks import Ranks
from steptrace.documents.summary import Summary
from steptrace.findings.collectives import most_exposed_wait_ns
from steptrace.findings.rule import Match, Rule, TraceFigures, Words, advise
from steptrace.findings.thresholds import NOISE, SEVERE
from steptrace.findings.window import window_of
from steptrace.format import duration, plural, share

#: A rank's kernel that takes this many times as long as on the median rank may be why it is late.
_LONGER: Final = 1.1
#: The most of them that are named.
_MOST_KERNELS: Final = 3
#: The most ranks whose waiting is named.
_MOST_RANKS: Final = 4


class WaitingRank(Document, frozen=True, kw_only=True):
    """A rank's waiting in collectives in a mean step."""

    rank: Annotated[int | None, field("Its number.")]
    wait_ns: Annotated[float, field("How long it waits.")]


class LongerKernel(Document, frozen=True, kw_only=True):
    """A kernel that takes longer on the late rank."""

    name: Annotated[str, field("Short name.")]
    ns: Annotated[float, field("Mean length on the late rank.")]
    median_rank_ns: Annotated[float, field("Mean length on the median rank.")]


class Figures(TraceFigures, frozen=True, kw_only=True):
    """A rank that comes last."""

    rank: Annotated[int, field("The rank.")]
    late_ns: Annotated[float, field("How long it comes after the second-last rank.")]
    caused_share: Annotated[float, field("Part of all waiting that it causes.")]
    caused_ns: Annotated[float, field("Other ranks' waiting that it causes, added up.")]
    waits: Annotated[tuple[WaitingRank, ...], field("The waiting of the other ranks.")]
    kernels: Annotated[tuple[LongerKernel, ...], field("Kernels that may be why it is late, most time first.")]


def _find(summary: Summary) -> Iterator[Match[Figures]]:
    ranks = summary.ranks
    windows = [window_of(entry) for entry in summary.traces]
    step_ns = median(window.step_ns for window in windows) if windows else 0.0
    if ranks is None or ranks.straggler is None or ranks.straggler.rank is None or not step_ns:
        return
    straggler = ranks.straggler
    first = windows[0]
    rank = ranks.straggler.rank
    late_ns = first.per_step(straggler.delay_ns)
    # A rank that computes while its collective waits loses nothing; steps of two ranks can overlap by more than one.
    exposed_ns = most_exposed_wait_ns(windows, without=rank)
    lost_ns = late_ns if exposed_ns is None else min(late_ns, exposed_ns)
    if lost_ns < NOISE.value * step_ns:
        return
    cost_ns, cost_share = first.bounded(min(lost_ns, step_ns), min(lost_ns / step_ns, 1.0))
    yield Match(
        severity="warning" if lost_ns >= SEVERE.value * step_ns else "info",
        figures=Figures(
            steps=first.steps,
            step_ns=step_ns,
            rank=rank,
            late_ns=late_ns,
            caused_share=straggler.share,
            caused_ns=first.per_step(straggler.caused_ns),
            waits=tuple(
                WaitingRank(rank=row.rank, wait_ns=first.per_step(row.wait_ns))
                for row in ranks.waits
                if row.wait_ns and row.rank != rank
            ),
            kernels=_longer_kernels(ranks, rank),
        ),
        cost_ns_per_step=cost_ns if all(window.steps for window in windows) else None,
        cost_share=cost_share,
        source=Source(rank=rank),
    )


def _longer_kernels(ranks: Ranks, rank: int) -> tuple[LongerKernel, ...]:
    """The kernels that take longest on this rank, and clearly longer than on the median one; most time first."""
    rows = [
        row
        for row in ranks.kernels
        if row.class_ != "comm" and row.slowest_rank == rank and row.mean_max_ns >= _LONGER * row.mean_median_ns
    ]
    rows.sort(key=lambda row: -(row.mean_max_ns - row.mean_median_ns) * row.count)
    return tuple(
        LongerKernel(name=row.short_name, ns=row.mean_max_ns, median_rank_ns=row.mean_median_ns)
        for row in rows[:_MOST_KERNELS]
    )


def _waiting(waits: Sequence[WaitingRank], per: str) -> list[str]:
    """The ranks that wait longest; of the others their number, and the range of their waiting."""
    rows = sorted(waits, key=lambda row: -row.wait_ns)
    longest = rows[:_MOST_RANKS]
    shorter = rows[_MOST_RANKS:]
    texts = [f"rank {row.rank} waits {duration(row.wait_ns)} {per}" for row in longest]
    if shorter:
        ends = dict.fromkeys((duration(shorter[-1].wait_ns), duration(shorter[0].wait_ns)))
        texts.append(f"{plural(len(shorter), 'other rank')} wait {' to '.join(ends)}")
    return texts


def _words(figures: Figures) -> Words:
    rank = figures.rank
    per = figures.per
    return Words(
        f"the other ranks wait for rank {rank}: it comes last by {duration(figures.late_ns)} {per}, and causes "
        f"{share(figures.caused_share)} of all waiting",
        (
            f"{duration(figures.caused_ns)} of other ranks' waiting {per}, added up",
            *_waiting(figures.waits, per),
            *(
                f"`{kernel.name}` takes {duration(kernel.ns)} on rank {rank}, {duration(kernel.median_rank_ns)} on the "
                "median rank"
                for kernel in figures.kernels
            ),
        ),
        advice=_advice(f"rank {rank}"),
    )


def _advice(rank: str) -> tuple[str, ...]:
    return advise(
        f"Compare {rank}'s trace with another's (steptrace diff): more data, a slower loader or GPU, work that only "
        "it does.",
    )


RULE: Final = Rule(
    name="straggler",
    topic="communication",
    figures=Figures,
    words=_words,
    in_ranks=_find,
    condition="one rank's share of all waiting caused in collectives is more than half way from an even share to all "
    "of it (three quarters with two ranks), by more than the clocks' noise, and it comes later than the second-last by "
    "at least {least} of the step; a warning from {high} on",
    thresholds={"least": NOISE, "high": SEVERE},
    source="half way is ours: the TensorFlow Profiler's test (modified z-score above 3.5) needs three hosts",
    advice=_advice("that rank"),
    counter_check="Start the job on other nodes, or with the ranks swapped: a straggler that stays with the rank is "
    "the program's, one that stays with the machine is the machine's.",
    study="all_reduce",
)
