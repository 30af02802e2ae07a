"""The findings of a rule in one trace, each with its share of the step and a cost that the step can save."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from msgspec import structs

from steptrace.documents.finding import Finding
from steptrace.findings.rule import AnyRule, Match
from steptrace.findings.window import Window
from steptrace.limits import NOISE_FLOOR
from steptrace.words.finding import evidence_of_path


def findings_of(rule: AnyRule, window: Window) -> Iterator[Finding]:
    """Yield a rule's findings that save something.

    Costs get their share of the step; they are for one step where the trace marks any. There are none on GPU work
    where the host bounds the step and Python stacks may be the reason: its cost is not known then.
    """
    if rule.in_trace is None or (rule.gpu_work and window.host_bound and window.host_may_be_slowed):
        return
    for match in rule.in_trace(window):
        on_path_ns = _bound_by_path(match, window) if rule.gpu_work else None
        bounded = match
        if on_path_ns is not None:
            bounded = replace(match, severity="info", cost_ns_per_step=on_path_ns)
        cost = bounded.cost_ns_per_step
        share = bounded.cost_share
        if share is None and cost is not None:
            share = min(window.share(cost), 1.0)
        cost, share = window.bounded(cost, share)
        if share is not None and share < NOISE_FLOOR:
            continue
        cost_per_step = cost if window.steps else None
        item = rule.finding(replace(bounded, cost_ns_per_step=cost_per_step, cost_share=share))
        if on_path_ns is not None:
            evidence = (*item.evidence, evidence_of_path(on_path_ns))
            item = structs.replace(item, evidence=evidence, on_path_ns=on_path_ns)
        yield item


def _bound_by_path(match: Match[Any], window: Window) -> float | None:
    """GPU work on the critical path, where a match costs more than that; None where it bounds nothing."""
    most_ns = window.gpu_on_path_ns
    if most_ns is None or match.cost_ns_per_step is None or match.cost_ns_per_step <= most_ns:
        return None
    return most_ns
