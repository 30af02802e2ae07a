"""`waits`, `straggler`, `matched`, `kernels` under `ranks`: how the ranks of one job differ."""

from dataclasses import asdict
from typing import Any

import pandas as pd

from steptrace.metrics import ranks
from steptrace.summary.analysis import Analysis, records

#: How many kernels summary.json compares across ranks; `rank_kernels.parquet` has all.
MOST_KERNELS = 50


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
    }
