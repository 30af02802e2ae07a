"""`launches`: how GPU work was launched, in all, by call and by operator."""

from typing import Any

import pandas as pd

from steptrace.analysis.common import launches
from steptrace.analysis.common.analysis import Analysis, plain, records

#: How many operators summary.json lists.
MOST = 20

_TIMES = ("host_ns", "device_ns", "delay_ns", "queueing_ns", "dependency_ns", "latency_ns")
_FLAGS = ("short_kernels", "slow_launches", "excess_delays")


def tables(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """`launch_times`, one row a launch, and `launch_calls`."""
    if analysis.device is None:
        return {}
    times = launches.launch_times(analysis.trace, analysis.device)
    return {"launch_times": times, "launch_calls": launches.launch_calls(times)}


def record(analysis: Analysis) -> dict[str, Any]:
    """Sum, median, 95th percentile and maximum of each time; counts; by call; by operator. None without a GPU."""
    if analysis.device is None:
        return {"launches": None}
    times = analysis.tables["launch_times"]
    times = times.assign(**launches.flags(times))
    kernels = analysis.trace.kernels
    linked = kernels.loc[(kernels["device"] == analysis.device).to_numpy(), "launch"].notna()
    return {
        "launches": {
            "count": len(times),
            "activities": int(linked.sum()),
            "unlinked": int((~linked).sum()),
            **{name: int(times[name].sum()) for name in _FLAGS},
            **{name: _distribution(times[name]) for name in _TIMES},
            "by_call": records(analysis.tables["launch_calls"]),
            "by_op": records(_by_op(times)),
        }
    }


def _distribution(values: "pd.Series[int]") -> dict[str, Any] | None:
    if len(values) == 0:
        return None
    figures = {"sum": int(values.sum()), "median": values.median(), "p95": values.quantile(0.95), "max": values.max()}
    return {name: plain(value) for name, value in figures.items()}


def _by_op(times: pd.DataFrame) -> pd.DataFrame:
    """The operators by the host time of their launches."""
    groups = times.groupby("op", sort=True)
    table = groups.agg(count=("launch", "size"), **{name: (name, "sum") for name in (*_TIMES, *_FLAGS)}).reset_index()
    return table.sort_values(["host_ns", "op"], ascending=[False, True], kind="stable").head(MOST)
