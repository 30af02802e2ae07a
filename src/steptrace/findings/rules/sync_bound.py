"""A sync that costs time."""

from collections.abc import Iterator
from typing import Annotated, Final

from steptrace.advice.replacements import counter_check, replacement, replacement_code
from steptrace.documents.base import field
from steptrace.documents.syncs import SyncSite, place_of
from steptrace.findings.rule import Match, Rule, TraceFigures, Words, advise
from steptrace.findings.sites import source_of
from steptrace.findings.thresholds import NOISE, SEVERE
from steptrace.findings.window import Window
from steptrace.format import duration, plural


class Figures(TraceFigures, frozen=True, kw_only=True):
    """One place at which the host waits for the GPU."""

    site: Annotated[SyncSite, field("The place, with its figures over the whole trace.")]
    saved_ns: Annotated[float, field("What its removal saves at most.")]
    blocked_ns: Annotated[float, field("How long the host is blocked.")]
    idle_after_ns: Annotated[float, field("How long the GPU is idle after it.")]
    replacement: Annotated[str | None, field("Code of the usual replacement (advice/replacements.toml).")]


def _find(window: Window) -> Iterator[Match[Figures]]:
    """The sync sites of a step; what saves less than the noise floor is dropped by the window."""
    for site in window.entry.syncs.sites if window.parts else ():
        saved_ns = window.per_step(site.ceiling_ns or 0)
        yield Match(
            severity="high" if window.share(saved_ns) >= SEVERE.value else "warning",
            figures=Figures(
                steps=window.steps,
                step_ns=window.step_ns,
                site=site,
                saved_ns=saved_ns,
                blocked_ns=window.per_step(site.blocked_ns),
                idle_after_ns=window.per_step(site.exposed_idle_ns or 0),
                replacement=replacement_code(site),
            ),
            cost_ns_per_step=saved_ns,
            source=source_of(site),
        )


def _words(figures: Figures) -> Words:
    site = figures.site
    per = figures.per
    claim = f"the host waits for the GPU at {place_of(site)} ({site.op or site.kind})"
    if figures.idle_after_ns:
        claim += f", and the GPU is then idle for {duration(figures.idle_after_ns)} {per}"
    evidence = [
        f"syncs: {site.how_often_in_words}" if figures.steps else f"{plural(site.count, 'sync')} {per}",
        f"host blocked {duration(figures.blocked_ns)} {per}",
        f"removing it saves {duration(figures.saved_ns)} of {duration(figures.step_ns)} {per} at most",
    ]
    if figures.saved_ns > figures.idle_after_ns:
        later = duration(figures.saved_ns - figures.idle_after_ns)
        evidence.append(f"at least {later} of that are later gaps: they close if the host gets ahead without the wait")
    if site.code:
        evidence.append(f"code: {site.code}")
    return Words(claim, tuple(evidence), replacement(site) or (), counter_check(site))


RULE: Final = Rule(
    name="sync_bound",
    topic="waiting",
    figures=Figures,
    told_apart_by=("site.op", "site.kind", "site.label", "site.phase"),
    words=_words,
    in_trace=_find,
    condition="without a sync site the step could be at least {least} shorter: the time the host is blocked there, and "
    "not more than the GPU's idle time that can close up; severe from {high} on",
    thresholds={"least": NOISE, "high": SEVERE},
    advice=advise("Keep the value on the device, or move the wait to the end of the step."),
    counter_check="Replace it alone and measure again: the sync must be gone and the step faster. If the wait turns up "
    "at the next sync instead, nothing was gained.",
    study="masked_loss",
)
