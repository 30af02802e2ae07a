"""What the findings of a variant's traces agree on.

They stand in each run's summary.json. One that most of the analysed runs have is the variant's, with the median of its
costs; one that a single run has is that run's chance.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from steptrace.compare.load import Variant
from steptrace.documents.finding import Finding
from steptrace.documents.summary import Summary


def trace_findings(variant: Variant) -> list[Finding]:
    """The findings on any rank's trace, and on the ranks together, that the majority of analysed runs have.

    One rank is enough: all wait for it. In the words of the run whose cost is the (lower) median; costs are medians,
    None where a run knows none.
    """
    runs = [run.summary for run in variant.measured if run.summary is not None]
    found: dict[tuple[Any, ...], list[Finding]] = {}
    for summary in runs:
        of_run = {_key(item): item for item in _findings(summary)}
        for key, item in of_run.items():
            found.setdefault(key, []).append(item)
    return [_merged(items) for items in found.values() if 2 * len(items) > len(runs)]


def _findings(summary: Summary) -> list[Finding]:
    """The findings of a run: each of its ranks' traces, where several have one the most expensive, and the ranks'."""
    found = [] if summary.ranks is None else list(summary.ranks.findings)
    for place, trace in enumerate(summary.traces):
        rank = place if trace.rank is None else trace.rank
        said = (f"on rank {rank}",) if len(summary.traces) > 1 else ()
        found += [replace(item, evidence=(*item.evidence, *said)) for item in trace.findings]
    return sorted(found, key=lambda item: item.cost_share or 0)


def _key(item: Finding) -> tuple[Any, ...]:
    source = item.source
    return item.rule, source and source.file, source and source.line, source and source.rank


def _merged(items: Sequence[Finding]) -> Finding:
    by_cost = sorted(items, key=lambda item: item.cost_ns_per_step or 0)
    costs = [item.cost_ns_per_step for item in items if item.cost_ns_per_step is not None]
    shares = [item.cost_share for item in items if item.cost_share is not None]
    return replace(
        by_cost[(len(by_cost) - 1) // 2],
        cost_ns_per_step=round(float(np.median(costs))) if len(costs) == len(items) else None,
        cost_share=float(np.median(shares)) if len(shares) == len(items) else None,
    )
