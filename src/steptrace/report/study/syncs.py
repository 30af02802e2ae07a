"""The section "Syncs" of a study's page: where each variant syncs, and what changes against its baseline."""

from typing import Final

from steptrace.documents.comparison import Comparison, SyncDiff, VariantResult
from steptrace.documents.comparison.syncs import SyncChange
from steptrace.report.page.markup import Anchors, Html, render
from steptrace.report.page.parts import Explained
from steptrace.report.page.table import site_table
from steptrace.report.study.model import MANY, variants_shown

#: More blocks than this are not shown: a page stays readable, and below 1.5 MB with 200 variants.
MOST_BLOCKS: Final = 40


def syncs(study: Comparison) -> Html:
    """Where each variant syncs, and which syncs it gains and loses."""
    return Html(sync_sites(study) + sync_changes(study))


def sync_sites(study: Comparison) -> Html:
    """The sites of every variant: measured, or predicted and called so. Variants without any stand in one sentence."""
    every = blocks(study)
    without = [variant for names, variant in every if _count(variant) == 0 and not variant.predicted_unknown]
    every = [(names, variant) for names, variant in every if variant not in without]
    shown = [(names, variant, _table(variant)) for names, variant in every[:MOST_BLOCKS]]
    return render(
        "study/sync_sites",
        study=study,
        blocks=shown,
        without=[name for names, variant in blocks(study) if variant in without for name in names],
        left_out=sum(len(names) for names, _ in every[MOST_BLOCKS:]),
        meanings=max((table.meanings for _, _, table in shown), key=len, default=()),
        many=len(study.variants) > MANY,
    )


def _count(variant: VariantResult) -> float | None:
    """Syncs per step as measured, else as predicted; None where neither is known."""
    measured, predicted = variant.syncs.measured_per_step, variant.syncs.predicted_per_step
    return predicted if measured is None else measured


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


def sync_changes(study: Comparison) -> Html:
    """The sites whose number of syncs differs from the baseline's, variant by variant; empty without any."""
    shown = [(v, v.sync_diff, changed(v.sync_diff)) for v in variants_shown(study) if v.sync_diff is not None]
    return render("study/sync_changes", study=study, shown=[one for one in shown if one[2]])


def changed(diff: SyncDiff) -> list[SyncChange]:
    """The sites whose number of syncs per step differs."""
    return [site for site in diff.sites if site.baseline_count_per_step != site.variant_count_per_step]
