"""`queues`, `copies`, `series`: what waited in front of each stream, and how fast copies moved bytes."""

from typing import Any

import numpy as np
import pandas as pd

from steptrace.analysis.common.analysis import Analysis, records
from steptrace.analysis.common.series import profile
from steptrace.analysis.launches import copies, queues
from steptrace.intervals import Ints

#: How many streams and kinds of copies of the analysed GPU are drawn, and in how many buckets.
MOST_DRAWN, BUCKETS = 6, 150


def tables(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """The series `queue_lengths` and `copy_rates`, and what they come to: `queues` and `copies`."""
    lengths, rates = queues.queue_lengths(analysis.trace), copies.copy_rates(analysis.trace)
    return {
        "queue_lengths": lengths,
        "queues": queues.queues(analysis.trace, lengths),
        "copy_rates": rates,
        "copies": copies.copies(analysis.trace, rates),
    }


def record(analysis: Analysis) -> dict[str, Any]:
    """Each stream's queue and each kind of copy; empty without a GPU. `series` draws those of the analysed GPU small.

    Of `series`, `edges` are the first and last instant of equally long buckets, `queues` and `copies` the busiest
    streams and kinds with the mean and the maximum of each bucket.
    """
    found: dict[str, Any] = {name: records(analysis.tables[name]) for name in ("queues", "copies")}
    return found | {"series": None if analysis.device is None else _drawn(analysis, analysis.device)}


def _drawn(analysis: Analysis, device: int) -> dict[str, Any] | None:
    wanted = ("queue_lengths", "copy_rates", "queues", "copies")
    tables = {name: analysis.tables[name][analysis.tables[name]["device"] == device] for name in wanted}
    times = pd.concat([tables["queue_lengths"]["ts"], tables["copy_rates"]["ts"]])
    if len(times) == 0 or times.max() - times.min() < BUCKETS:
        return None
    edges = np.linspace(times.min(), times.max(), BUCKETS + 1).astype(np.int64)
    streams = tables["queues"].nlargest(MOST_DRAWN, "activities")["stream"]
    kinds = tables["copies"].nlargest(MOST_DRAWN, "bytes")["kind"]
    return {
        "edges": [int(edges[0]), int(edges[-1])],
        "queues": [
            {"stream": int(stream), **_profile(tables["queue_lengths"], "stream", stream, edges)} for stream in streams
        ],
        "copies": [
            {"kind": str(kind), **_profile(tables["copy_rates"], "kind", kind, edges)}
            for kind in kinds
            if (tables["copy_rates"]["kind"] == kind).any()
        ],
    }


def _profile(table: pd.DataFrame, by: str, key: object, edges: Ints) -> dict[str, list[float]]:
    rows = table[(table[by] == key).to_numpy()]
    values = rows["length"] if by == "stream" else rows["bytes_per_second"]
    mean, highest = profile(rows["ts"].to_numpy(), values.to_numpy(), edges)
    return {name: [float(f"{value:.4g}") for value in column] for name, column in (("mean", mean), ("max", highest))}
