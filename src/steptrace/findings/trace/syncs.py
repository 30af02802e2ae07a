"""Rules on synchronisations of one trace: those on studies, in words for any program."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from steptrace.findings.model import Match, Rule
from steptrace.findings.sync_cost import SYNC_RULES, place, sync_sites, syncs_together
from steptrace.findings.trace.window import Window, as_variant, on_trace

#: So many places are named where several cost time only together.
_NAMED: Final = 3


def _together(window: Window) -> Iterator[Match]:
    """As on a study; the places are named, and what a replay saves is the one figure."""
    variant = as_variant(window)
    sites = sorted(variant["sync_sites"], key=lambda site: -(site.get("blocked_ns_per_step") or 0))
    names = list(dict.fromkeys(place(site) for site in sites))
    first = "; ".join(names[:_NAMED])
    for match in syncs_together(variant):
        yield replace(
            match,
            claim=f"{len(sites)} places make the host wait for the GPU one after the other, and without one alone the "
            f"wait only moves to the next: {first}{'; …' if len(names) > _NAMED else ''}",
            cost_ns_per_step=variant["sync_prices"]["all_saved_ns_per_step"],
        )


_RULES: Final = {rule.name: rule for rule in SYNC_RULES}

TRACE_SYNC_RULES: Final[tuple[Rule, ...]] = (
    replace(_RULES["sync_bound"], find=on_trace(lambda window: sync_sites(as_variant(window)))),
    replace(
        _RULES["syncs_together"],
        find=on_trace(_together),
        advice="Replace them all at once: the host is held up by the first that is left.",
        counter_check="Replace them all and profile again: the syncs must be gone and the step faster.",
    ),
)
