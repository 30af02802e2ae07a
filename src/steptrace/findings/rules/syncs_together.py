"""Syncs that cost time only all together: removing one moves the wait to the next."""

from collections.abc import Iterator
from typing import Annotated, Final

from steptrace.documents.base import Document, field
from steptrace.documents.syncs import SyncSite, place_of
from steptrace.findings.rule import Match, Rule, Threshold, TraceFigures, Words, advise
from steptrace.findings.sites import source_of
from steptrace.findings.thresholds import NOISE, SEVERE
from steptrace.findings.window import Window
from steptrace.format import duration, plural

#: Removing all syncs together must save this many times the sum of removing each alone.
_TIMES: Final = Threshold(1.5, "ours", unit="")
#: The most places that are named.
_MOST_NAMED: Final = 3


class Blocking(Document, frozen=True, kw_only=True):
    """A place at which the host waits in a mean step."""

    site: Annotated[SyncSite, field("The place, with its figures over the whole trace.")]
    blocked_ns: Annotated[float, field("How long the host is blocked.")]


class Figures(TraceFigures, frozen=True, kw_only=True):
    """The syncs of a step."""

    sites: Annotated[int, field("Number of places.")]
    places: Annotated[int, field("Number of these that read differently: one line can hold several.")]
    saved_ns: Annotated[float, field("What the removal of all of them saves at most.")]
    saved_alone_ns: Annotated[float, field("Sum of what the removal of each of them alone saves at most.")]
    longest: Annotated[tuple[Blocking, ...], field("The places that block the host longest.")]
    named: Annotated[tuple[SyncSite, ...], field("The first of these that read differently.")]


def _find(window: Window) -> Iterator[Match[Figures]]:
    syncs = window.entry.syncs
    sites = window.entry.syncs.sites
    if len(sites) < 2 or not window.parts:
        return
    saved_ns = window.per_step(syncs.ceiling_ns or 0)
    alone_ns = window.per_step(sum(site.ceiling_ns or 0 for site in sites))
    if saved_ns < _TIMES.value * alone_ns:
        return
    by_length = sorted(sites, key=lambda site: -site.blocked_ns)
    by_place: dict[tuple[object, ...], SyncSite] = {}
    for site in by_length:
        by_place.setdefault(_place(site), site)
    yield Match(
        severity="high" if window.share(saved_ns) >= SEVERE.value else "warning",
        figures=Figures(
            steps=window.steps,
            step_ns=window.step_ns,
            sites=len(sites),
            places=len(by_place),
            saved_ns=saved_ns,
            saved_alone_ns=alone_ns,
            longest=tuple(
                Blocking(site=site, blocked_ns=window.per_step(site.blocked_ns)) for site in by_length[:_MOST_NAMED]
            ),
            named=tuple(by_place.values())[:_MOST_NAMED],
        ),
        cost_ns_per_step=saved_ns,
        source=source_of(by_length[0]),
    )


def _place(site: SyncSite) -> tuple[object, ...]:
    """What tells two places apart for a reader: line, file, or label."""
    if site.line is not None:
        return site.program, site.file, site.line
    return site.program, site.file, site.function, site.label if site.file is None else None


def _words(figures: Figures) -> Words:
    per = figures.per
    names = "; ".join(map(place_of, figures.named))
    hidden = figures.places - len(figures.named)
    more = f"; and {plural(hidden, 'more place')}" if hidden > 0 else ""
    saved = duration(figures.saved_ns)
    alone = duration(figures.saved_alone_ns)
    return Words(
        f"{figures.sites} sites sync one after another, and removing only one moves the wait to the next: "
        f"{names}{more}",
        (
            f"removing all of them saves {saved} of {duration(figures.step_ns)} {per} at most",
            f"removing one at a time saves {alone} in all at most",
            *(f"{place_of(row.site)}: host blocked {duration(row.blocked_ns)} {per}" for row in figures.longest),
        ),
    )


RULE: Final = Rule(
    name="syncs_together",
    topic="waiting",
    figures=Figures,
    words=_words,
    in_trace=_find,
    condition="without any sync the step could be at least {least} shorter, and that is at least {times} times as much "
    "as the sites could save one by one; severe from {high} on",
    thresholds={"least": NOISE, "high": SEVERE, "times": _TIMES},
    advice=advise("Replace all syncs of a step at once: a single remaining sync still stalls the host."),
    counter_check="Replace them all and profile again: the syncs must be gone and the step faster.",
    study="masked_loss",
    for_several_lines=True,
)
