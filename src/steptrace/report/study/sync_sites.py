"""The section "Where the host waits": the sites of syncs, measured or predicted."""

from steptrace.documents.comparison import Comparison
from steptrace.report.page import definitions as defs
from steptrace.report.page.markup import Html, render
from steptrace.report.page.places import rank_predicted, rank_sites
from steptrace.report.study.model import MANY


def sync_sites(study: Comparison) -> Html:
    """Where the host waits for the device: measured sites, or predicted ones, called so."""
    return render(
        "study/sync_sites",
        study=study,
        rank=rank_sites,
        rank_predicted=rank_predicted,
        many=len(study.variants) > MANY,
        terms=defs.definitions(_sync_terms(study)),
    )


def _sync_terms(study: Comparison) -> tuple[str, ...]:
    """The terms of the columns that are there: what is only predicted has no times."""
    measured = any(variant.sync_sites for variant in study.variants)
    return tuple(term for term in defs.SYNC_TERMS if measured or term not in ("blocked", "exposed"))
