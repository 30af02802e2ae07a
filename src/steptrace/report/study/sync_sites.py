"""The section "Where the host waits": the sites of syncs, measured or predicted."""

from typing import Final

from steptrace.documents.comparison import Comparison, VariantResult
from steptrace.report.page import definitions as defs
from steptrace.report.page.markup import Html, render
from steptrace.report.page.places import rank_predicted, rank_sites
from steptrace.report.study.model import MANY

#: More blocks than this are not shown: a page stays readable, and below 1.5 MB with 200 variants.
MOST_BLOCKS: Final = 40


def sync_sites(study: Comparison) -> Html:
    """Where the host waits for the device: measured sites, or predicted ones, called so."""
    found = blocks(study)
    return render(
        "study/sync_sites",
        study=study,
        blocks=found[:MOST_BLOCKS],
        left_out=sum(len(names) for names, _ in found[MOST_BLOCKS:]),
        rank=rank_sites,
        rank_predicted=rank_predicted,
        many=len(study.variants) > MANY,
        terms=_sync_terms(study),
    )


def blocks(study: Comparison) -> list[tuple[list[str], VariantResult]]:
    """The variants, each under its name; of many, those for which the same is predicted under all of their names."""
    found: dict[object, tuple[list[str], VariantResult]] = {}
    for variant in study.variants:
        alone = len(study.variants) <= MANY or variant.syncs.measured_per_step is not None
        key = variant.name if alone else (variant.syncs, variant.predicted_sites, variant.predicted_unknown)
        found.setdefault(key, ([], variant))[0].append(variant.name)
    return list(found.values())


def _sync_terms(study: Comparison) -> tuple[str, ...]:
    """The terms of the columns that are there: what is only predicted has no times."""
    measured = any(variant.sync_sites for variant in study.variants)
    return tuple(term for term in defs.SYNC_TERMS if measured or term not in ("blocked", "exposed"))
