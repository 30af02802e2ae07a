"""Copies by kind, with their bytes, time and rates, and the rates as series in time.

A kind is the direction, and whether the host's memory was pinned or pageable.
"""

from typing import Any

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.activity import outside_steps
from steptrace.analysis.common.registry import reads, table, table_part, without_rows_of
from steptrace.analysis.common.series import quantiles, running_sum, time_held
from steptrace.documents.copies import Copy, CopyRate
from steptrace.documents.table import frame_of, validate
from steptrace.trace.columns import spans_of
from steptrace.trace.model import Trace, once

_NS_PER_S = 1e9


@table("copy_rates", CopyRate)
@once
@without_rows_of("kernels", CopyRate)
def copy_rates(trace: Trace) -> pd.DataFrame:
    """The rate of every kind of copy on every GPU as a series (table `copy_rates`).

    A copy's rate is its bytes over its length while it runs; rates of concurrent copies add up. A copy without
    recorded bytes, or of length 0, has no rate.
    """
    parts = []
    for (device, kind), rows in _copies(trace).groupby(["device", "kind"], sort=True):
        sized = rows[rows["sized"]]
        if len(sized) == 0:
            continue
        rate = sized["bytes"].to_numpy(dtype=np.float64) / sized["dur"].to_numpy() * _NS_PER_S
        times = spans_of(sized).T.ravel()
        instants, running = running_sum(times, np.repeat(np.array([1, -1], dtype=np.int64), len(sized)))
        _, total = running_sum(times, np.concatenate([rate, -rate]))
        # Floats added and subtracted again leave rounding errors: the sum must be 0 when nothing runs.
        total = np.where(running == 0, 0.0, np.maximum(total, 0.0))
        columns = {"device": device, "kind": kind, "ts": instants, "running": running, "bytes_per_second": total}
        parts.append(pd.DataFrame(columns))
    return validate(pd.concat([frame_of(CopyRate), *parts], ignore_index=True), CopyRate)


@table_part("copies")
@reads("copy_rates")
@once
@without_rows_of("kernels", Copy)
def copies(trace: Trace) -> pd.DataFrame:
    """The kinds of copies with their bytes, time and rates, the most time first (table `copies`).

    Copies that belong to no step count only in the rates.
    """
    series = dict(iter(copy_rates(trace).groupby(["device", "kind"])))
    copied = _copies(trace)
    rows: list[dict[str, Any]] = []
    for key, group in copied[~copied["outside"]].groupby(["device", "kind"], sort=True):
        nbytes = group.loc[group["bytes"].notna(), "bytes"]
        row = {"device": key[0], "kind": key[1], "count": len(group), "unsized": int((~group["sized"]).sum())}
        # Times cover all copies, those without recorded bytes too.
        row["ns"] = intervals.measure(intervals.union(spans_of(group)))
        row["bytes"], row["median_bytes"] = (nbytes.sum(), nbytes.median()) if len(nbytes) else (None, None)
        rows.append(row | _rates(series.get(key)))
    rows.sort(key=lambda row: (-row["ns"], row["kind"]))
    return frame_of(Copy, rows)


def _rates(series: pd.DataFrame | None) -> dict[str, float | None]:
    if series is None:
        return dict.fromkeys(f"{name}_bytes_per_second" for name in ("mean", "median", "max"))
    running = series["running"].to_numpy() > 0
    held = time_held(series["ts"].to_numpy())[running]
    rate = series["bytes_per_second"].to_numpy()[running]
    return {
        "mean_bytes_per_second": float((rate * held).sum() / held.sum()),
        "median_bytes_per_second": float(quantiles(rate, held, np.zeros_like(held), 0.5)[0]),
        "max_bytes_per_second": float(rate.max()),
    }


def _copies(trace: Trace) -> pd.DataFrame:
    """The copies and sets by GPU and kind; all sets are one kind."""
    kernels = trace.kernels
    chosen = (kernels["kind"] == "memory").to_numpy()
    rows = kernels[chosen]
    name = rows["name"].astype(object).to_numpy()
    is_set = (rows["category"] == "memset").to_numpy()
    return pd.DataFrame(
        {
            "device": rows["device"].to_numpy(),
            "kind": np.where(is_set, "Memset", name),
            "ts": rows["ts"].to_numpy(),
            "dur": rows["dur"].to_numpy(),
            "bytes": rows["bytes"].array,
            "sized": (rows["bytes"].notna() & (rows["dur"] > 0)).to_numpy(),
            "outside": outside_steps(trace)[chosen],
        }
    )
