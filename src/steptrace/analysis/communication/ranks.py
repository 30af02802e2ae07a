"""Several ranks of one job: who waited for whom in collectives, and how differently the same kernels ran."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.kernel_names import short_names
from steptrace.analysis.communication.collectives import MATCHED_COLLECTIVES, RANK_KERNELS, RANK_WAITS
from steptrace.analysis.communication.rank_match import Clocks, align, all_collectives, match
from steptrace.analysis.kernels.measure import kernel_table
from steptrace.documents.summary import Straggler
from steptrace.schema import frame_of
from steptrace.trace.model import Trace


def straggler_share(ranks: int) -> float:
    """The share of all waiting above which a rank is the straggler: half way from an even share to all of it.

    Chance alone gives one of two ranks more than half; of many ranks hardly any.
    """
    return (1 + 1 / ranks) / 2


def by_rank(traces: Sequence[Trace]) -> dict[int, Trace]:
    """The traces by rank; by their place in the list if any does not say its rank, or two say the same."""
    ranks = [trace.rank for trace in traces]
    if None in ranks or len(set(ranks)) < len(ranks):
        return dict(enumerate(traces))
    return {rank: trace for rank, trace in zip(ranks, traces, strict=True) if rank is not None}


def matched_collectives(traces: dict[int, Trace]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Which collectives the ranks share, and what each rank waited: `MATCHED_COLLECTIVES`, `RANK_WAITS`.

    A rank waits from its own arrival in a collective (the start of its kernel) to the arrival of the last rank, at
    most to its own end. The whole waiting is on the account of the rank that was last. Where collectives are under way
    at once a rank waits only once: sums over collectives take each instant once. Times are aligned by the ends
    of collectives (see `rank_match`); waits below `clock_spread_ns` are noise.
    """
    found = all_collectives(traces)
    clocks = align(found, list(traces))
    parts = match(found, clocks)
    last_start = parts.groupby("match")["start_ns"].transform("max")
    wait = np.maximum(np.minimum(last_start, parts["end_ns"]) - parts["start_ns"], 0)
    late = parts.sort_values(["match", "start_ns", "rank"], ascending=[True, False, True], kind="stable")
    is_last = ~parts.index.isin(late.index[late.duplicated("match")])
    matched = parts.assign(wait_ns=wait.astype("int64"), last=is_last)
    return matched[MATCHED_COLLECTIVES.names], _waits(matched, found, clocks)


def _waits(matched: pd.DataFrame, found: pd.DataFrame, clocks: Clocks) -> pd.DataFrame:
    second = matched[~matched["last"]].groupby("match")["start_ns"].max()
    rows = []
    for rank in clocks.offset:
        own = matched[matched["rank"] == rank]
        last = own[own["last"]].set_index("match")
        others = matched[matched["match"].isin(last.index) & (matched["rank"] != rank)]
        measured = len(own) > 0
        alone = list(clocks.component.values()).count(clocks.component[rank]) == 1
        rows.append(
            {
                "rank": rank,
                "clock_offset_ns": None if alone else clocks.offset[rank],
                "clock_spread_ns": clocks.spread[rank],
                "collectives": int((found["rank"] == rank).sum()),
                "matched": len(own),
                "last": len(last),
                "wait_ns": _waited(own) if measured else None,
                "caused_ns": sum(_waited(part) for _, part in others.groupby("rank")) if measured else None,
                "delay_ns": _measure(second[last.index], last["start_ns"]) if measured else None,
            }
        )
    return frame_of(RANK_WAITS, rows)


def _waited(parts: pd.DataFrame) -> int:
    """How long one rank waited in these collectives, each instant once."""
    return _measure(parts["start_ns"], parts["start_ns"] + parts["wait_ns"])


def _measure(start: pd.Series, end: pd.Series) -> int:
    return intervals.measure(intervals.union(intervals.spans(start.to_numpy(), end.to_numpy())))


def straggler(waits: pd.DataFrame) -> Straggler | None:
    """The rank that causes most of all waiting (`straggler_share`), if its delays stand out of the clocks' noise.

    They do if its mean delay, over the collectives where it was last, is above every rank's `clock_spread_ns`.
    """
    caused = waits["caused_ns"].fillna(0).to_numpy(dtype=np.int64)
    if caused.sum() == 0:
        return None
    row = waits.iloc[int(np.argmax(caused))]
    share = float(caused.max() / caused.sum())
    noise = waits["clock_spread_ns"].fillna(0).max()
    if share <= straggler_share(int((waits["matched"] > 0).sum())) or row["delay_ns"] / max(row["last"], 1) <= noise:
        return None
    return Straggler(rank=int(row["rank"]), share=share, caused_ns=int(row["caused_ns"]), delay_ns=int(row["delay_ns"]))


def rank_kernels(traces: dict[int, Trace]) -> pd.DataFrame:
    """How the ranks differ in each kernel's time: `RANK_KERNELS`, the kernel with the most time first.

    Figures are over the ranks that ran it; a rank that did not is no zero.
    """
    parts = [kernel_table(t, t.devices[0]).assign(rank=rank) for rank, t in traces.items() if t.devices]
    if not parts:
        return frame_of(RANK_KERNELS)
    every = pd.concat(parts, ignore_index=True)
    groups = every.groupby(["class", "name"], sort=True)
    table = groups.agg(
        ranks=("rank", "size"),
        count=("count", "sum"),
        sum_ns=("sum_ns", "sum"),
        sum_min_ns=("sum_ns", "min"),
        sum_median_ns=("sum_ns", "median"),
        sum_max_ns=("sum_ns", "max"),
        mean_min_ns=("mean_ns", "min"),
        mean_median_ns=("mean_ns", "median"),
        mean_max_ns=("mean_ns", "max"),
    )
    table["slowest_rank"] = every.loc[groups["mean_ns"].idxmax().to_numpy(), "rank"].to_numpy()
    # Other names may be alike on one rank than on all together.
    table = table.reset_index()
    table["short_name"] = table["name"].map(short_names(every["name"]))
    table = table.sort_values(["sum_ns", "name"], ascending=[False, True], kind="stable", ignore_index=True)
    return frame_of(RANK_KERNELS, table)
