"""What rules on the variants of a comparison have in common: the step that shares are of."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from steptrace.findings.model import NS_PER_MS, Json, Match


def step_ns_of(variant: Json) -> float | None:
    """Median of the unprofiled step, ns; None if it was not measured."""
    return variant["step_ms"]["median"] * NS_PER_MS if variant.get("step_ms") else None


def traced_step_ns(variant: Json) -> float | None:
    """Mean step of the profiled window, ns: what trace figures are shares of; None if it was not measured."""
    parts = variant.get("breakdown_ms")
    return sum(parts.values()) * NS_PER_MS if parts else None


def per_variant(check: Callable[[Json], Iterator[Match]]) -> Callable[[Json], Iterator[Match]]:
    """Make a check of one variant a check of all variants of a comparison.

    A cost without a share of its own is a share of the profiled step (of the timed one, where that is all there is).
    """

    def find(comparison: Json) -> Iterator[Match]:
        for variant in comparison["variants"]:
            step_ns = traced_step_ns(variant) or step_ns_of(variant)
            for match in check(variant):
                share = match.cost_share
                if share is None and match.cost_ns_per_step is not None and step_ns:
                    share = match.cost_ns_per_step / step_ns
                yield replace(match, variant=variant["name"], cost_share=share)

    return find
