"""The sections "Where the host waits" and "Syncs gained and lost"."""

from typing import Final

from steptrace.documents.comparison import Comparison, SyncDiff, VariantResult
from steptrace.documents.comparison.syncs import SyncChange
from steptrace.report.page.markup import Anchors, Html, render
from steptrace.report.page.table import Explained, site_table
from steptrace.report.study.model import MANY, variants_shown

#: More blocks than this are not shown: a page stays readable, and below 1.5 MB with 200 variants.
MOST_BLOCKS: Final = 40


def syncs(study: Comparison) -> Html:
    """Where the host waits, and which syncs every variant gains and loses."""
    return Html(sync_sites(study) + sync_changes(study))


def sync_sites(study: Comparison) -> Html:
    """Where the host waits for the device: measured sites, or predicted ones, called so."""
    every = blocks(study)
    shown = [(names, variant, _table(variant)) for names, variant in every[:MOST_BLOCKS]]
    return render(
        "study/sync_sites",
        study=study,
        blocks=shown,
        left_out=sum(len(names) for names, _ in every[MOST_BLOCKS:]),
        meanings=max((table.meanings for _, _, table in shown), key=len, default=()),
        many=len(study.variants) > MANY,
    )


def _table(variant: VariantResult) -> Explained:
    """The sites that were traced, else those that are predicted; nothing without any."""
    anchor = f"{Anchors().of('site', variant.name)}-"
    sites = variant.sync_sites if variant.syncs.measured_per_step is not None else variant.predicted_sites
    return site_table(sites, anchor) if sites else Explained("")


def blocks(study: Comparison) -> list[tuple[list[str], VariantResult]]:
    """The variants, each under its name; of many, those for which the same is predicted under all of their names."""
    by_content: dict[object, tuple[list[str], VariantResult]] = {}
    for variant in study.variants:
        alone = len(study.variants) <= MANY or variant.syncs.measured_per_step is not None
        key = variant.name if alone else (variant.syncs, variant.predicted_sites, variant.predicted_unknown)
        by_content.setdefault(key, ([], variant))[0].append(variant.name)
    return list(by_content.values())


#: More variants than this start folded.
_MANY = 4


def sync_changes(study: Comparison) -> Html:
    """Which syncs every variant gains and loses."""
    compared = [variant for variant in study.variants if variant.sync_diff is not None]
    shown = [variant for variant in variants_shown(study) if variant.sync_diff is not None]
    kept = [variant for variant in shown if variant.sync_diff is not None and not changed(variant.sync_diff)]
    return render(
        "study/sync_changes",
        study=study,
        shown=[variant for variant in shown if variant not in kept],
        kept=kept,
        left_out=len(compared) - len(shown),
        many=len(shown) > _MANY,
        changed_of=changed,
    )


def changed(diff: SyncDiff) -> list[SyncChange]:
    """The sites whose number of syncs per step differs."""
    return [site for site in diff.sites if site.baseline_count_per_step != site.variant_count_per_step]
