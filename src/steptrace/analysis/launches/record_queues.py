"""`series`: what waited in front of each stream, and how fast copies moved bytes, as a page draws it."""

import numpy as np
import pandas as pd

from steptrace.analysis.common.analysis import Analysis
from steptrace.analysis.common.series import profile
from steptrace.documents.summary import CopySeries, QueueSeries, Series
from steptrace.intervals import Ints

#: How many streams and kinds of copies of the analysed GPU are drawn, and in how many buckets.
MOST_DRAWN, BUCKETS = 6, 150


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
