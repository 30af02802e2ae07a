"""What the findings of a variant's traces agree on.

They stand in each run's summary.json. One that most of the analysed runs have is the variant's, with the median of its
costs; one that a single run has is that run's chance.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from steptrace.compare.load import Variant

_COSTS: Final = ("cost_ns_per_step", "cost_share")


def trace_findings(variant: Variant) -> list[dict[str, Any]]:
    """The findings on any rank's trace, and on the ranks together, that the majority of analysed runs have.

    One rank is enough: all wait for it. In the words of the run whose cost is the (lower) median; costs are medians,
    None where a run knows none.
    """
    runs = [summary for run in variant.measured if (summary := run.summary or {}).get("traces")]
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for summary in runs:
        of_run = {_key(item): item for item in _findings(summary)}
        for key, item in of_run.items():
            found.setdefault(key, []).append(item)
    return [_merged(items) for items in found.values() if 2 * len(items) > len(runs)]


def _findings(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The findings of a run: each of its ranks' traces, where several have one the dearest, and the ranks together."""
    traces = summary["traces"]
    found = [dict(item) for item in (summary.get("ranks") or {}).get("findings") or ()]
    for place, trace in enumerate(traces):
        for item in trace.get("findings") or ():
            rank = trace["rank"] if trace.get("rank") is not None else place
            said = [*item["evidence"], f"on rank {rank}"] if len(traces) > 1 else list(item["evidence"])
            found.append({**item, "evidence": said})
    return sorted(found, key=lambda item: item.get("cost_share") or 0)


def _key(item: Mapping[str, Any]) -> tuple[Any, ...]:
    source = item.get("source") or {}
    return item["rule"], source.get("file"), source.get("line"), source.get("rank")


def _merged(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    by_cost = sorted(items, key=lambda item: item.get("cost_ns_per_step") or 0)
    merged = dict(by_cost[(len(by_cost) - 1) // 2])
    for name in _COSTS:
        known = [item[name] for item in items if item.get(name) is not None]
        merged[name] = float(np.median(known)) if len(known) == len(items) else None
    if merged["cost_ns_per_step"] is not None:
        merged["cost_ns_per_step"] = round(merged["cost_ns_per_step"])
    return merged
