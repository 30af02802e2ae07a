"""Rules on synchronisations of one trace: those on studies, in words for any program."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from steptrace.findings.model import Match, Rule
from steptrace.findings.sync_cost import SYNC_RULES, by_blocked_time, place, sync_sites, syncs_together
from steptrace.findings.trace.window import Window, profiled_step

#: So many places are named where several cost time only together.
_NAMED: Final = 3


def _together(window: Window) -> Iterator[Match]:
    """As on a study; the places are named, and what a replay saves is the one figure."""
    step = profiled_step(window)
    count = len(step.sites)
    names = list(dict.fromkeys(place(site) for site in by_blocked_time(step.sites)))
    first = "; ".join(names[:_NAMED])
    for match in syncs_together(step):
        yield replace(
            match,
            claim=f"{count} places make the host wait for the GPU one after the other, and without one alone the "
            f"wait only moves to the next: {first}{'; …' if len(names) > _NAMED else ''}",
            cost_ns_per_step=step.saved_ns,
        )


_RULES: Final[dict[str, Rule[Any]]] = {rule.name: rule for rule in SYNC_RULES}

TRACE_SYNC_RULES: Final[tuple[Rule[Window], ...]] = (
    replace(_RULES["sync_bound"], find=lambda window: sync_sites(profiled_step(window))),
    replace(
        _RULES["syncs_together"],
        find=_together,
        advice="Replace them all at once: the host is held up by the first that is left.",
        counter_check="Replace them all and profile again: the syncs must be gone and the step faster.",
    ),
)
