"""`annotations`: the program's own labels over the whole trace, with the GPU's time that belongs to them."""

from typing import Any

import pandas as pd

from steptrace.analysis.common import annotations
from steptrace.analysis.common.analysis import Analysis, records

#: How many labels summary.json lists; the table has all.
MOST = 100


def tables(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """`annotation_times`."""
    return {"annotation_times": annotations.annotation_times(analysis.trace, analysis.device)}


def record(analysis: Analysis) -> dict[str, Any]:
    """The labels with the most host time."""
    return {"annotations": records(analysis.tables["annotation_times"].head(MOST))}
