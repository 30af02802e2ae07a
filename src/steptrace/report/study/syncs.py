"""The sections "Where the host waits" and "Syncs gained and lost"."""

from typing import Final

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison, SyncDiff, VariantResult, WhatIfOfVariant
from steptrace.documents.comparison.syncs import SyncChange
from steptrace.report.page.markup import Html, rank_predicted, rank_sites, render
from steptrace.report.study.model import MANY, variants_shown

#: More blocks than this are not shown: a page stays readable, and below 1.5 MB with 200 variants.
MOST_BLOCKS: Final = 40


def syncs(study: Comparison) -> Html:
    """Where the host waits, and which syncs every variant gains and loses."""
    return Html(sync_sites(study) + sync_changes(study))


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
    )


def blocks(study: Comparison) -> list[tuple[list[str], VariantResult]]:
    """The variants, each under its name; of many, those for which the same is predicted under all of their names."""
    found: dict[object, tuple[list[str], VariantResult]] = {}
    for variant in study.variants:
        alone = len(study.variants) <= MANY or variant.syncs.measured_per_step is not None
        key = variant.name if alone else (variant.syncs, variant.predicted_sites, variant.predicted_unknown)
        found.setdefault(key, ([], variant))[0].append(variant.name)
    return list(found.values())


#: More variants than this start folded.
_MANY = 4


def sync_changes(study: Comparison) -> Html:
    """The price of each sync of the baselines, and which syncs every variant gains and loses."""
    known = [variant for variant in study.variants if variant.sync_diff is not None]
    shown = [variant for variant in variants_shown(study) if variant.sync_diff is not None]
    kept = [variant for variant in shown if variant.sync_diff is not None and not changed(variant.sync_diff)]
    return render(
        "study/sync_changes",
        study=study,
        priced=[]
        if study.on_simulated_gpu
        else [variant for variant in study.variants if variant.sync_prices is not None and variant.sync_sites],
        shown=[variant for variant in shown if variant not in kept],
        kept=kept,
        left_out=len(known) - len(shown),
        many=len(shown) > _MANY,
        whatif_in_words=whatif_in_words,
        changed_of=changed,
    )


def changed(diff: SyncDiff) -> list[SyncChange]:
    """The sites whose number of syncs per step differs."""
    return [site for site in diff.sites if site.baseline_count_per_step != site.variant_count_per_step]


def whatif_in_words(whatif: WhatIfOfVariant, baseline: str) -> str:
    """ "What-if: without these 2 syncs a step of `base` would take 21.0 ms, measured 22.1 ms: -5.0 %"."""
    syncs = "one sync" if whatif.removed_per_step == 1 else f"{fmt.count(whatif.removed_per_step)} syncs"
    which = f"without the {syncs} a step that this variant does away with"
    if whatif.predicted_ms is None or whatif.error is None:
        return f"What-if: not predicted {which}: {whatif.reason or 'no trace of the baseline could be replayed'}."
    error = f"{whatif.error * 100:+.1f} %".replace("-", "\N{MINUS SIGN}")
    added = ""
    if whatif.added_per_step:
        added = f" It also adds {fmt.count(whatif.added_per_step)} a step, which the prediction knows nothing of."
    return (
        f"What-if: {which}, `{baseline}` was predicted to take {fmt.duration_ms(whatif.predicted_ms)}; measured "
        f"{fmt.duration_ms(whatif.measured_ms)}: {error}.{added}"
    )
