"""`critical_path`: what the steps' time was spent on, one thing after the other, and what each class costs."""

from typing import Any

import pandas as pd

from steptrace.analysis.common.analysis import Analysis
from steptrace.analysis.critical_path import measure as critical_path


def tables(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """The path's parts, `critical_path`, and the steps' time by class, `critical_steps`."""
    return critical_path.critical_paths(analysis.trace)


def record(analysis: Analysis) -> dict[str, Any]:
    """Shares of the path and what would be left without each class; None without any host event."""
    return {"critical_path": critical_path.summary(analysis.tables, gpu=analysis.device is not None)}
