"""`waits`, `straggler`, `matched`, `kernels`, `all_reduce` under `ranks`: how the ranks of one job differ."""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

import pandas as pd

from steptrace.analysis.common.analysis import Analysis, records
from steptrace.analysis.communication import ranks
from steptrace.analysis.communication.all_reduce import AllReduce, all_reduce
from steptrace.errors import RecordError
from steptrace.record import Communication, read_communication

#: How many kernels summary.json compares across ranks; `rank_kernels.parquet` has all.
MOST_KERNELS = 50


def carried(analysis: Analysis) -> dict[str, Any]:
    """`all_reduce`: the trace's all-reduces, None without any."""
    return {"all_reduce": all_reduce(analysis.trace, analysis.device)[0]}


def tables(analyses: list[Analysis]) -> dict[str, pd.DataFrame]:
    """`rank_waits`, `matched_collectives` and `rank_kernels`."""
    traces = ranks.by_rank([analysis.trace for analysis in analyses])
    matched, waits = ranks.matched_collectives(traces)
    return {"rank_waits": waits, "matched_collectives": matched, "rank_kernels": ranks.rank_kernels(traces)}


def record(analyses: list[Analysis], tables: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """Who waited for whom, and the kernels with the most time; `straggler` is null if no rank stands out."""
    waits, matched = tables["rank_waits"], tables["matched_collectives"]
    found = ranks.straggler(waits)
    by_name = matched.groupby(["collective", "group"], dropna=False, sort=True)
    waited = by_name.agg(count=("match", "nunique"), wait_ns=("wait_ns", "sum")).reset_index()
    return {
        "count": len(analyses),
        "straggler": None if found is None else asdict(found),
        "waits": records(waits),
        "collectives": {
            "total": int(waits["collectives"].sum()),
            "matched": len(matched),
            "matched_by": {str(how): int(n) for how, n in matched["matched_by"].value_counts().sort_index().items()},
            "by_name": records(waited.sort_values("wait_ns", ascending=False, kind="stable")),
        },
        "kernels": records(tables["rank_kernels"].head(MOST_KERNELS)),
        "all_reduce": _all_reduce(analyses, waits),
    }


def _all_reduce(analyses: Sequence[Analysis], waits: pd.DataFrame) -> dict[str, Any] | None:
    """Per step, medians over the ranks, beside what it should take by the run's own communication.json; null without.

    A rank waits for the others inside its collectives: `wait_ns_per_step` is their mean, each instant once.
    """
    found = [one for a in analyses if (one := a.carried["all_reduce"]) is not None and one.steps]
    if not found:
        return None
    said = _communication(analyses)
    steps = median(one.steps or 1 for one in found)
    waited = waits["wait_ns"].dropna()
    return {
        "source": found[0].source,
        "count_per_step": _per_step(found, "count"),
        "bytes_per_step": _per_step(found, "bytes"),
        "measured_ns_per_step": _per_step(found, "measured_ns"),
        "exposed_ns_per_step": _per_step(found, "exposed_ns"),
        "overlap": median(overlaps)
        if (overlaps := [one.overlap for one in found if one.overlap is not None])
        else None,
        "wait_ns_per_step": float(waited.mean()) / steps if len(waited) else None,
        "expected_ns": None if said is None else said.expected_ns,
        "simplified_ns": None if said is None else said.simplified_ns,
        "bus_bytes_per_s": None if said is None else said.bus_bytes_per_s,
    }


def _per_step(found: Sequence[AllReduce], figure: str) -> float | None:
    values = [(getattr(one, figure), one.steps) for one in found]
    if any(value is None for value, _ in values):
        return None
    return float(median(value / steps for value, steps in values))


def _communication(analyses: Sequence[Analysis]) -> Communication | None:
    """What the run recorded beside its traces; None for traces of others."""
    try:
        return read_communication(analyses[0].path.parent)
    except RecordError:
        return None  # an extra: the traces say what they say without it
