"""The sections on what sets the variants apart from their baseline: the waterfall, and the syncs gained and lost."""

from collections.abc import Sequence

from steptrace.report import definitions as defs
from steptrace.report import format as fmt
from steptrace.report.changes_model import Difference, Foretold
from steptrace.report.draw.waterfall import CATEGORY_NAMES, waterfall_figure
from steptrace.report.markup import Html, render
from steptrace.report.model import Study, Variant

#: More variants than this start folded.
_MANY = 4


def waterfall(study: Study) -> Html:
    """From the baseline's step time to each variant's, part by part."""
    shown = [variant for variant in study.variants if variant.changes.waterfall and variant.changes.total is not None]
    kind = "gpu" if any(part.category == "compute" for v in shown for part in v.changes.waterfall) else "host"
    return render(
        "waterfall",
        blocks=[_block(variant, study) for variant in shown],
        kind=kind,
        many=len(shown) > _MANY,
        names=CATEGORY_NAMES,
        confidence=study.method.confidence,
        terms=defs.definitions(defs.WATERFALL_TERMS[kind]),
    )


def _block(variant: Variant, study: Study) -> dict[str, object]:
    total = variant.changes.total
    assert total is not None
    longer = max(total.baseline_ms, total.variant_ms)
    parts = [part for part in variant.changes.waterfall if part.shows]
    return {
        "variant": variant,
        "baseline": variant.baseline or study.baseline,
        "parts": parts,
        "total": total,
        "longer": longer,
        "unit": fmt.unit_for_ms(_sizes([*parts, total])),
        "chart": waterfall_figure(parts, total),
    }


def _sizes(parts: Sequence[Difference]) -> list[float]:
    return [abs(value) for part in parts for value in (part.delta_ms, part.baseline_ms, part.variant_ms)]


def sync_changes(study: Study) -> Html:
    """The price of each sync of the baselines, and which syncs every variant gains and loses."""
    shown = [variant for variant in study.variants if variant.changes.basis is not None]
    return render(
        "sync_changes",
        priced=[variant for variant in study.variants if variant.changes.prices is not None and variant.sync_sites],
        shown=shown,
        study=study,
        many=len(shown) > _MANY,
        foretold_of=foretold_words,
        terms=defs.definitions(defs.PRICE_TERMS) if any(v.changes.basis == "measured" for v in shown) else (),
    )


def foretold_words(foretold: Foretold, baseline: str) -> str:
    """ "What-if: without these 2 syncs a step of `base` would take 21.0 ms, measured 22.1 ms: -5.0 %"."""
    syncs = "one sync" if foretold.removed_per_step == 1 else f"{fmt.count(foretold.removed_per_step)} syncs"
    which = f"without the {syncs} a step that this variant does away with"
    if foretold.predicted_ms is None or foretold.error is None:
        return f"What-if: not foretold {which}: {foretold.reason or 'no trace of the baseline could be replayed'}."
    added = ""
    if foretold.added_per_step:
        added = f" It also adds {fmt.count(foretold.added_per_step)} a step, which the prediction knows nothing of."
    return (
        f"What-if: {which}, `{baseline}` was foretold to take {fmt.duration_ms(foretold.predicted_ms)}; measured "
        f"{fmt.duration_ms(foretold.measured_ms)}: {_signed_share(foretold.error)}.{added}"
    )


def _signed_share(error: float) -> str:
    return f"{error * 100:+.1f} %".replace("-", "\N{MINUS SIGN}")
