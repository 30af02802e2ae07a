"""What rules on the variants of a comparison have in common: the step that shares are of.

`ProfiledStep` is what the rules on syncs and on an idle GPU look at, of a variant here and of a trace in
`findings.trace.window`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from steptrace.documents.comparison import Breakdown, Comparison, SyncSiteOfVariant, VariantResult
from steptrace.findings.model import A_STEP, Match
from steptrace.format import NS_PER_MS


@dataclass(frozen=True)
class ProfiledStep:
    """A mean profiled step with its syncs. `step_ns` is its length, for want of a trace that of an unprofiled step.

    `saved_ns` and `ceiling_ns` are what a step would gain without any of its syncs; `per` says in words what figures
    are for. What was not measured is None.
    """

    sites: tuple[SyncSiteOfVariant, ...]
    step_ns: float | None
    saved_ns: float | None
    ceiling_ns: float | None
    breakdown: Breakdown | None
    gpu_busy_pct: float | None
    nvml_util_pct: float | None = None
    per: str = A_STEP


def profiled_step(variant: VariantResult) -> ProfiledStep:
    """The profiled step of a variant."""
    prices = variant.sync_prices
    return ProfiledStep(
        sites=variant.sync_sites,
        step_ns=_step_ns(variant),
        saved_ns=None if prices is None else prices.all_saved_ns_per_step,
        ceiling_ns=None if prices is None else prices.all_ceiling_ns_per_step,
        breakdown=variant.breakdown_ms,
        gpu_busy_pct=variant.gpu_busy_pct,
        nvml_util_pct=variant.nvml_util_pct,
    )


def length_ms(parts: Breakdown) -> float:
    """The step that the parts add up to, ms."""
    return parts.compute + parts.exposed_comm + parts.exposed_memory + parts.idle


def per_variant(check: Callable[[VariantResult], Iterator[Match]]) -> Callable[[Comparison], Iterator[Match]]:
    """Make a check of one variant a check of all variants of a comparison.

    A cost without a share of its own is a share of the profiled step (of the timed one, where that is all there is).
    """

    def find(comparison: Comparison) -> Iterator[Match]:
        for variant in comparison.variants:
            step_ns = _step_ns(variant)
            for match in check(variant):
                share = match.cost_share
                if share is None and match.cost_ns_per_step is not None and step_ns:
                    share = match.cost_ns_per_step / step_ns
                yield replace(match, variant=variant.name, cost_share=share)

    return find


def _step_ns(variant: VariantResult) -> float | None:
    """Mean step of the profiled window, else the median of the unprofiled step, ns; None if neither was measured."""
    traced_ms = 0.0 if variant.breakdown_ms is None else length_ms(variant.breakdown_ms)
    if traced_ms:
        return traced_ms * NS_PER_MS
    return None if variant.median_ms is None else variant.median_ms * NS_PER_MS
