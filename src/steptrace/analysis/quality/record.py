"""`quality`: what a reader should know before trusting a trace's figures."""

from typing import Any

import pandas as pd

from steptrace.analysis.common.analysis import Analysis, records
from steptrace.analysis.quality import measure as quality


def tables(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """`quality_checks`."""
    return {"quality_checks": quality.quality_checks(analysis.trace)}


def record(analysis: Analysis) -> dict[str, Any]:
    """The steps counted, the share of GPU work with a known launch, every check, and the warnings of those that fail.

    A note of the reader (events without times, negative lengths, categories not read) is a warning too.
    """
    trace, checks = analysis.trace, analysis.tables["quality_checks"]
    failed = checks[checks["warns"].to_numpy(dtype=bool)]
    return {
        "quality": {
            "steps": len(trace.steps),
            "launch_coverage": float(trace.kernels["launch"].notna().mean()) if len(trace.kernels) else None,
            "warnings": [*trace.meta.notes, *failed["says"]],
            "checks": records(checks),
        }
    }
