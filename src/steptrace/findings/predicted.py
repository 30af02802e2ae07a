"""What to do about the syncs of a prediction, where no GPU has measured them."""

from collections.abc import Iterable

from steptrace.documents.finding import PREDICTED_SYNCS, Finding
from steptrace.documents.syncs import PredictedSite
from steptrace.findings.replacements import counter_check, replacement
from steptrace.findings.waiting import place, source_of
from steptrace.format import plural


def by_replacement(sites: Iterable[PredictedSite]) -> dict[str, list[PredictedSite]]:
    """The sites that have a usual replacement, by its text."""
    groups: dict[str, list[PredictedSite]] = {}
    for site in sites:
        if text := replacement(site):
            groups.setdefault(text, []).append(site)
    return groups


def predicted_findings(sites: Iterable[PredictedSite]) -> Iterable[Finding]:
    """A finding for each replacement, with its lines; their cost is not known without a GPU."""
    for text, group in by_replacement(sites).items():
        count = sum(site.count_per_step or 0 for site in group)
        lines = ", ".join(dict.fromkeys(map(place, group)))
        yield Finding(
            rule=PREDICTED_SYNCS, severity="warning", claim=f"{plural(count, 'sync')} per step predicted, at {lines}",
            cost_ns_per_step=None, source=source_of(group[0]), evidence=(), advice=text,
            counter_check=counter_check(group[0]), variant=None,
        )  # fmt: skip
