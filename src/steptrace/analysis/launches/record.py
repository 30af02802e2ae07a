"""`launches`: how GPU work was launched, in all, by call and by operator."""

from typing import Any

import pandas as pd

from steptrace.analysis.common.analysis import Analysis, rows
from steptrace.analysis.common.launches import flags
from steptrace.documents.rows import LaunchCall
from steptrace.documents.summary import Distribution, Launches, LaunchOperator

#: How many operators summary.json lists.
MOST = 20

_TIMES = ("host_ns", "device_ns", "delay_ns", "queueing_ns", "dependency_ns", "latency_ns")
_FLAGS = ("short_kernels", "slow_launches", "excess_delays")


def launches(analysis: Analysis) -> Launches | None:
    """Sum, median, 95th percentile and maximum of each time; counts; by call; by operator. None without a GPU."""
    if analysis.device is None:
        return None
    times = analysis.tables["launch_times"]
    times = times.assign(**flags(times))
    kernels = analysis.trace.kernels
    linked = kernels.loc[(kernels["device"] == analysis.device).to_numpy(), "launch"].notna()
    figures: dict[str, Any] = {name: int(times[name].sum()) for name in _FLAGS}
    figures |= {name: _distribution(times[name]) for name in _TIMES}
    return Launches(
        count=len(times),
        activities=int(linked.sum()),
        unlinked=int((~linked).sum()),
        **figures,
        by_call=analysis.rows("launch_calls", LaunchCall),
        by_op=rows(_by_op(times), LaunchOperator),
    )


def _distribution(values: "pd.Series[int]") -> Distribution | None:
    if len(values) == 0:
        return None
    return Distribution(
        sum=int(values.sum()),
        median=float(values.median()),
        p95=float(values.quantile(0.95)),
        max=int(values.max()),
    )


def _by_op(times: pd.DataFrame) -> pd.DataFrame:
    """The operators by the host time of their launches."""
    groups = times.groupby("op", sort=True)
    table = groups.agg(count=("launch", "size"), **{name: (name, "sum") for name in (*_TIMES, *_FLAGS)}).reset_index()
    return table.sort_values(["host_ns", "op"], ascending=[False, True], kind="stable").head(MOST)
