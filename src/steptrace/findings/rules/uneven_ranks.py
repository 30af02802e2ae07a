"""Ranks wait for each other in collectives, and no single rank is the cause."""

from collections.abc import Iterator
from statistics import mean, median
from typing import Annotated, Final

from steptrace.documents.base import Document, field
from steptrace.documents.ranks import Ranks
from steptrace.documents.summary import Summary
from steptrace.findings.collectives import most_exposed_wait_ns
from steptrace.findings.rule import Match, Rule, Threshold, TraceFigures, Words, advise
from steptrace.findings.thresholds import HIGH, MODERATE
from steptrace.findings.window import window_of
from steptrace.format import duration

#: A straggler is the cause of the waiting if it could save this share of it.
_MOSTLY: Final = Threshold(0.5, "ours")
#: The most ranks that are named as evidence.
_MOST_RANKS: Final = 4


class RankWaits(Document, frozen=True, kw_only=True):
    """A rank's part in the waiting of a mean step."""

    rank: Annotated[int | None, field("Its number.")]
    wait_ns: Annotated[float, field("How long it waits for others.")]
    caused_ns: Annotated[float, field("How long others wait for it, added up.")]


class Figures(TraceFigures, frozen=True, kw_only=True):
    """Waiting of all ranks."""

    mean_wait_ns: Annotated[float, field("Mean waiting of a rank.")]
    straggler: Annotated[int | None, field("The rank that causes most of it, if one does.")]
    straggler_saves_ns: Annotated[float, field("What is saved without that rank's delays alone.")]
    waits: Annotated[tuple[RankWaits, ...], field("By rank, the one that causes most waiting first.")]


def _find(summary: Summary) -> Iterator[Match[Figures]]:
    ranks = summary.ranks
    windows = [window_of(entry) for entry in summary.traces]
    step_ns = median(window.step_ns for window in windows) if windows else 0.0
    exposed_ns = most_exposed_wait_ns(windows, without=None)
    if ranks is None or exposed_ns is None or not step_ns or _is_noise(ranks):
        return
    first = windows[0]
    waited = [row for row in ranks.waits if row.wait_ns is not None and row.matched]
    # With the work shared out evenly each rank would come at the mean of the ranks' arrivals.
    mean_ns = first.per_step(mean(row.wait_ns or 0 for row in waited)) if waited else 0.0
    cost_ns = min(mean_ns, exposed_ns)
    straggler = ranks.straggler
    late_ns = 0.0 if straggler is None else first.per_step(straggler.delay_ns)
    if cost_ns < MODERATE.value * step_ns or late_ns >= _MOSTLY.value * cost_ns:
        return
    bound_ns, cost_share = first.bounded(cost_ns, min(cost_ns / step_ns, 1.0))
    waited.sort(key=lambda row: -(row.caused_ns or 0))
    yield Match(
        severity="warning" if cost_ns >= HIGH.value * step_ns else "info",
        figures=Figures(
            steps=first.steps,
            step_ns=step_ns,
            mean_wait_ns=mean_ns,
            straggler=None if straggler is None else straggler.rank,
            straggler_saves_ns=late_ns,
            waits=tuple(
                RankWaits(
                    rank=row.rank,
                    wait_ns=first.per_step(row.wait_ns or 0),
                    caused_ns=first.per_step(row.caused_ns or 0),
                )
                for row in waited[:_MOST_RANKS]
            ),
        ),
        cost_ns_per_step=bound_ns if all(window.steps for window in windows) else None,
        cost_share=cost_share,
    )


def _is_noise(ranks: Ranks) -> bool:
    """Whether the mean waiting in a collective is within the uncertainty of the ranks' clocks."""
    waited = sum(row.wait_ns or 0 for row in ranks.waits)
    matched = sum(row.matched for row in ranks.waits)
    return waited / max(matched, 1) <= max((row.clock_spread_ns or 0 for row in ranks.waits), default=0)


def _words(figures: Figures) -> Words:
    per = figures.per
    claim = f"the ranks wait for each other, {duration(figures.mean_wait_ns)} {per} on average"
    if figures.straggler is not None:
        claim += (
            f"; rank {figures.straggler} causes most of it, but without its delays alone only "
            f"{duration(figures.straggler_saves_ns)} is saved"
        )
    return Words(
        claim,
        tuple(
            f"rank {row.rank} waits {duration(row.wait_ns)} {per}, and others wait for it {duration(row.caused_ns)}, "
            "added up"
            for row in figures.waits
        ),
    )


RULE: Final = Rule(
    name="uneven_ranks",
    topic="communication",
    figures=Figures,
    words=_words,
    in_ranks=_find,
    condition="the ranks wait for each other in collectives for at least {least} of the step on average, with no "
    "computation meanwhile, and no straggler's delays are {mostly} of that or more; a warning from {high} on",
    thresholds={"least": MODERATE, "high": HIGH, "mostly": _MOSTLY},
    source="the thresholds of the step are those of exposed communication",
    advice=advise(
        "Give all ranks the same work in each step: batches of equal cost (sort samples by length, share them out "
        "by cost instead of number).",
        "Look for pauses that hit one rank after the other: garbage collection, logging, checkpoints, a loader "
        "that runs dry.",
    ),
    counter_check="Train all ranks on the same batch: waiting that stays has its cause in the machines.",
    study="all_reduce",
)
