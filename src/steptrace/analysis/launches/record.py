"""`launches`, `series`: how GPU work was launched, what waited in front of each stream, how fast copies moved bytes."""

from typing import Any

import numpy as np
import pandas as pd

from steptrace.analysis.common.analysis import Analysis, rows
from steptrace.analysis.common.launches import FLAGS, TIMES, flags
from steptrace.analysis.common.series import profile
from steptrace.documents.rows import LaunchCall
from steptrace.documents.summary import CopySeries, Distribution, Launches, LaunchOperator, QueueSeries, Series
from steptrace.intervals import Ints

#: How many operators summary.json lists.
MOST = 20
#: How many streams and kinds of copies of the analysed GPU are drawn, and in how many buckets.
MOST_DRAWN, BUCKETS = 6, 150


def launches(analysis: Analysis) -> Launches | None:
    """Sum, median, 95th percentile and maximum of each time; counts; by call; by operator. None without a GPU."""
    if analysis.device is None:
        return None
    times = analysis.tables["launch_times"]
    times = times.assign(**flags(times))
    kernels = analysis.trace.kernels
    linked = kernels.loc[(kernels["device"] == analysis.device).to_numpy(), "launch"].notna()
    figures: dict[str, Any] = {name: int(times[name].sum()) for name in FLAGS}
    figures |= {name: _distribution(times[name]) for name in TIMES}
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
    table = groups[[*TIMES, *FLAGS]].sum().assign(count=groups.size()).reset_index()
    return table.sort_values(["host_ns", "op"], ascending=[False, True], kind="stable").head(MOST)


def series(analysis: Analysis) -> Series | None:
    """The busiest streams and kinds of copies of the analysed GPU, with the mean and the maximum of each bucket."""
    if analysis.device is None:
        return None
    wanted = ("queue_lengths", "copy_rates", "queues", "copies")
    tables = {name: analysis.tables[name] for name in wanted}
    tables = {name: table[table["device"] == analysis.device] for name, table in tables.items()}
    times = pd.concat([tables["queue_lengths"]["ts"], tables["copy_rates"]["ts"]])
    if len(times) == 0 or times.max() - times.min() < BUCKETS:
        return None
    edges = np.linspace(times.min(), times.max(), BUCKETS + 1).astype(np.int64)
    streams = tables["queues"].nlargest(MOST_DRAWN, "activities")["stream"]
    kinds = tables["copies"].nlargest(MOST_DRAWN, "bytes")["kind"]
    return Series(
        edges=(int(edges[0]), int(edges[-1])),
        queues=tuple(
            QueueSeries(stream=int(stream), **_profile(tables["queue_lengths"], "stream", stream, edges))
            for stream in streams
        ),
        copies=tuple(
            CopySeries(kind=str(kind), **_profile(tables["copy_rates"], "kind", kind, edges))
            for kind in kinds
            if (tables["copy_rates"]["kind"] == kind).any()
        ),
    )


def _profile(table: pd.DataFrame, by: str, key: object, edges: Ints) -> dict[str, tuple[float, ...]]:
    rows = table[(table[by] == key).to_numpy()]
    values = rows["length"] if by == "stream" else rows["bytes_per_second"]
    mean, highest = profile(rows["ts"].to_numpy(), values.to_numpy(), edges)
    return {
        name: tuple(float(f"{value:.4g}") for value in column) for name, column in (("mean", mean), ("max", highest))
    }
