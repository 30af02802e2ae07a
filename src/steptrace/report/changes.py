"""The sections on what sets the variants apart from their baseline: the waterfall, and the syncs gained and lost."""

from collections.abc import Sequence

from steptrace.documents.comparison import Comparison, Difference, SyncChange, SyncDiff, VariantResult, WhatIfOfVariant
from steptrace.report import definitions as defs
from steptrace.report import format as fmt
from steptrace.report.draw.waterfall import CATEGORY_NAMES, is_insignificant, is_too_wide, waterfall_figure
from steptrace.report.markup import Html, render
from steptrace.report.model import is_baseline

#: More variants than this start folded.
_MANY = 4


def waterfall(study: Comparison) -> Html:
    """From the baseline's step time to each variant's, part by part."""
    shown = [(v, v.step_difference) for v in study.variants if v.waterfall and v.step_difference is not None]
    kind = "gpu" if any(part.category == "compute" for v, _ in shown for part in v.waterfall) else "host"
    return render(
        "waterfall",
        blocks=[_block(variant, total) for variant, total in shown],
        kind=kind,
        many=len(shown) > _MANY,
        names=CATEGORY_NAMES,
        confidence=study.method.confidence,
        terms=defs.definitions(defs.WATERFALL_TERMS[kind]),
    )


def _block(variant: VariantResult, total: Difference) -> dict[str, object]:
    parts = [part for part in variant.waterfall if part.baseline_ns or part.variant_ns]  # on either side
    return {
        "variant": variant,
        "rows": [*((part.category, part) for part in parts), (None, total)],
        "total": total,
        "insignificant": is_insignificant,
        "too_wide": is_too_wide,
        "unit": fmt.unit_for_ms(_sizes([*parts, total])),
        "chart": waterfall_figure(parts, total),
    }


def _sizes(parts: Sequence[Difference]) -> list[float]:
    return [
        abs(value)
        for part in parts
        for value in (part.delta_ms, part.baseline_ns / fmt.NS_PER_MS, part.variant_ns / fmt.NS_PER_MS)
    ]


def sync_changes(study: Comparison) -> Html:
    """The price of each sync of the baselines, and which syncs every variant gains and loses."""
    shown = [variant for variant in study.variants if variant.sync_diff is not None]
    return render(
        "sync_changes",
        priced=[variant for variant in study.variants if variant.sync_prices is not None and variant.sync_sites],
        shown=shown,
        is_baseline=is_baseline,
        many=len(shown) > _MANY,
        whatif_in_words=whatif_in_words,
        changed_of=changed,
        terms=defs.definitions(defs.PRICE_TERMS)
        if any(v.sync_diff is not None and v.sync_diff.basis == "measured" for v in shown)
        else (),
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
    added = ""
    if whatif.added_per_step:
        added = f" It also adds {fmt.count(whatif.added_per_step)} a step, which the prediction knows nothing of."
    return (
        f"What-if: {which}, `{baseline}` was predicted to take {fmt.duration_ms(whatif.predicted_ms)}; measured "
        f"{fmt.duration_ms(whatif.measured_ms)}: {_signed_share(whatif.error)}.{added}"
    )


def _signed_share(error: float) -> str:
    return f"{error * 100:+.1f} %".replace("-", "\N{MINUS SIGN}")
