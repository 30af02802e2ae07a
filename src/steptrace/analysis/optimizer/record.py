"""`optimizer`: how the trace's optimizers make their updates."""

from typing import Any

import pandas as pd

from steptrace.analysis.common.analysis import Analysis, records
from steptrace.analysis.optimizer.measure import optimizer_calls


def tables(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """`optimizer_calls`."""
    return {"optimizer_calls": optimizer_calls(analysis.trace, analysis.device)}


def record(analysis: Analysis) -> dict[str, Any]:
    """The methods of each optimizer over the whole trace; null where no label says that one was called."""
    table = analysis.tables["optimizer_calls"]
    return {"optimizer": records(table) if len(table) else None}
