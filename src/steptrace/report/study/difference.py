"""The way from the baseline's step to that of the variant that the page is about, as a waterfall.

On a GPU it is made of the parts of profiled steps, without one of the parts of the estimated steps.
"""

from typing import Final

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison
from steptrace.documents.estimate import PartSaving
from steptrace.documents.overview import part_name
from steptrace.documents.variant import VariantResult
from steptrace.findings.answer import answer_of
from steptrace.findings.estimated import estimate_of, estimated_gpus, leads
from steptrace.findings.why import UNEXPLAINED, part_changes
from steptrace.report.page.markup import Html
from steptrace.report.page.waterfall import PartChange, waterfall_figure

_TITLE: Final = "Where the difference comes from, per step"

#: What the GPU waits for in an estimated step.
_WAITS: Final = {"idle_host": "waiting for launches", "idle_sync": "added by syncs"}


def compared_pair(study: Comparison) -> tuple[VariantResult, VariantResult] | None:
    """The baseline and the variant of the answer's reason; None without a reason, and if estimates lead the page."""
    reason = None if leads(study) else answer_of(study).reason
    if reason is None:
        return None
    baseline, variant = study.variant(reason.baseline), study.variant(reason.name)
    return None if baseline is None or variant is None else (baseline, variant)


def difference(study: Comparison) -> Html:
    """The waterfall from the baseline to the variant of `compared_pair`; empty if their profiles do not explain it."""
    if leads(study):
        return _estimated(study)
    pair = compared_pair(study)
    changes = None if pair is None else part_changes(*pair)
    if pair is None or changes is None:
        return Html("")
    before, after = (variant.step_time_ms for variant in pair)
    if before is None or after is None:
        return Html("")
    # Where the profiles account for less than half of the difference, a waterfall of them would explain nothing.
    if abs(changes[UNEXPLAINED]) > abs(after - before) * fmt.NS_PER_MS / 2:
        return Html("")
    rows = [PartChange(part, part_name(part), ns) for part, ns in changes.items() if part != UNEXPLAINED]
    baseline, variant = pair
    return waterfall_figure(
        _TITLE,
        (baseline.name, before * fmt.NS_PER_MS),
        rows,
        (variant.name, after * fmt.NS_PER_MS),
    )


def _estimated(study: Comparison) -> Html:
    """The waterfall of the estimates for the first GPU: means of the draws, which add up, with the range of each part.

    Empty where the estimates do not choose a variant, or are those of an earlier version.
    """
    gpu = estimated_gpus(study)[0]
    reason = answer_of(study).reason
    baseline, variant = (None, None) if reason is None else map(study.variant, (reason.baseline, reason.name))
    estimate = None if variant is None else estimate_of(variant, gpu)
    pair = None if estimate is None else estimate.difference
    if baseline is None or variant is None or pair is None or pair.mean_ms is None:
        return Html("")
    before, after = (ms * fmt.NS_PER_MS for ms in pair.mean_ms)
    changes = [PartChange(row.part, _name(row), -row.mean_ms * fmt.NS_PER_MS, _longer_ns(row)) for row in pair.parts]
    return waterfall_figure(
        f"{_TITLE}: means of the estimate for {gpu}",
        (baseline.name, before),
        changes,
        (variant.name, after),
    )


def _name(row: PartSaving) -> str:
    if row.part == "compute":
        return "other kernels" if row.kind is None else f"kernels: {row.kind}"
    return row.kind or _WAITS.get(row.part, part_name(row.part))


def _longer_ns(row: PartSaving) -> tuple[float, float]:
    """The range of the additional time of a part; below 0 if the part takes less time."""
    low, high = row.saved_ms
    return -high * fmt.NS_PER_MS, -low * fmt.NS_PER_MS
