"""`overview`, `placement`, `precision`: the first look at a trace, before any detail."""

from dataclasses import asdict
from typing import Any

import pandas as pd

from steptrace.analysis.common.analysis import Analysis, records
from steptrace.analysis.common.call_tree import device_time_by
from steptrace.analysis.kernels import placement, precision
from steptrace.analysis.overview import measure as overview

#: How many operators and kernels summary.json lists.
MOST = 10


def tables(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """`top_operators`; `kernel_formats` of the analysed GPU."""
    trace, of = analysis.trace, analysis.tables
    by_operator = None if analysis.device is None else device_time_by(trace, of["kernel_origins"], ["op"])
    found = {"top_operators": overview.top_operators(of["call_names"], by_operator)}
    if analysis.device is not None:
        found["kernel_formats"] = precision.kernel_formats(trace, analysis.device)
    return found


def record(analysis: Analysis) -> dict[str, Any]:
    """Step time and its parts with the top operators (null without steps and GPU); placement; number formats.

    `placement` is null without operators, `precision` without a GPU.
    """
    trace, device, of = analysis.trace, analysis.device, analysis.tables
    seen, placed = overview.overview(trace, device), placement.placement(trace)
    formats = of.get("kernel_formats")
    return {
        "overview": None if seen is None else {**asdict(seen), "operators": records(of["top_operators"].head(MOST))},
        "placement": None if placed is None else asdict(placed),
        "precision": None
        if formats is None
        else {**asdict(precision.precision(formats)), "kernels": records(_telling(formats))},
    }


def _telling(formats: pd.DataFrame) -> pd.DataFrame:
    """The kernels with the most time among those eligible for tensor cores."""
    return formats[formats["eligible"].to_numpy(dtype=bool)].head(MOST)
