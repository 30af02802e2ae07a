"""`kernels`, `kernel_types`: which kernels a GPU spent its time in, by name and by class with their overlaps."""

from typing import Any

import pandas as pd

from steptrace.analysis.common.analysis import Analysis, records
from steptrace.analysis.kernels import measure as kernels


def tables(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """`kernel_names` and `kernel_types` of the analysed GPU."""
    if analysis.device is None:
        return {}
    return {
        "kernel_names": kernels.kernel_table(analysis.trace, analysis.device),
        "kernel_types": kernels.kernel_types(analysis.trace, analysis.device),
    }


def record(analysis: Analysis) -> dict[str, Any]:
    """Both tables; empty without a GPU."""
    return {key: records(analysis.tables[name]) if name in analysis.tables else [] for key, name in _KEYS.items()}


_KEYS = {"kernels": "kernel_names", "kernel_types": "kernel_types"}
