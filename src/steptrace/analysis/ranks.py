"""Several ranks of one job: waits for other ranks in collectives, and differences in the same kernels' times.

A rank's collectives are those of the analysed GPU, or without one the host's. A collective is complete if the traces of
all ranks of its group hold it. Only then is it known when its last rank came. For any other collective only the waiting
for the ranks that were read is known: a rank waits at least that long.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Annotated

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.kernel_names import short_names
from steptrace.analysis.communication import ALL_REDUCE, sum_of_known, waiting_known
from steptrace.analysis.kernels import recorded_kernels
from steptrace.analysis.rank_match import SEND_RECV, Clocks, align, all_collectives, match
from steptrace.documents.base import Document, field, key
from steptrace.documents.ranks import (
    MatchedName,
    RankAllReduce,
    RankCollectives,
    RankKernel,
    Ranks,
    RankWait,
    Straggler,
)
from steptrace.documents.run import Communication
from steptrace.documents.summary import TraceSummary
from steptrace.documents.table import frame_of, names_of, rows
from steptrace.errors import RecordError
from steptrace.run_folder import read_communication
from steptrace.trace.model import Trace

#: Most kernels compared across ranks in summary.json; `rank_kernels.parquet` has all.
MOST_KERNELS = 50

_PER_STEP = ("count", "bytes", "measured_ns", "exposed_ns")


class MatchedCollective(Document, frozen=True):
    """One rank's part in a collective that several ranks' traces hold."""

    match: Annotated[int, key("", "Number of the collective.")]
    collective: Annotated[str, field("`all_reduce`, ..., or the kernel's short name where nothing says it.")]
    group: Annotated[str | None, field("Process group, null if not in the trace.")]
    matched_by: Annotated[str, field("`sequence` (group and number), `order` (on a host) or `time` (aligned times).")]
    rank: Annotated[int, key("", "Rank, or the trace's place in the list where traces do not say.")]
    kernel: Annotated[int | None, field("Row of that rank's `kernels`, null for a collective of the host.")]
    label: Annotated[int | None, field("Row of that rank's `labels`, null for one of a GPU.")]
    step: Annotated[int | None, field("Row of that rank's `steps`.")]
    start_ns: Annotated[int, field("Aligned start.")]
    dur_ns: Annotated[int, field("Length.")]
    complete: Annotated[bool, field("Whether the traces of all ranks of its group hold it.")]
    wait_ns: Annotated[
        int | None,
        field("Of the length, before the last rank arrived; the rest is transfer. Null for an incomplete one."),
    ]
    least_wait_ns: Annotated[int, field("Of the length, before the last of the ranks that were read arrived.")]
    last: Annotated[bool, field("Whether this rank was the last to arrive of those that were read.")]


def straggler_share(ranks: int) -> float:
    """The share of all waiting above which a rank is the straggler: halfway between an even share and all of it.

    By chance alone one of two ranks has more than half, but hardly one of many.
    """
    return (1 + 1 / ranks) / 2


def by_rank(traces: Sequence[Trace]) -> dict[int, Trace]:
    """The traces by rank, or by their place in the list if a rank is missing or occurs twice."""
    ranks = [trace.rank for trace in traces]
    if None in ranks or len(set(ranks)) < len(ranks):
        return dict(enumerate(traces))
    return {rank: trace for rank, trace in zip(ranks, traces, strict=True) if rank is not None}


def matched_collectives(traces: dict[int, Trace]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The collectives that ranks share, and each rank's waiting: `MatchedCollective`, `RankWait`.

    A rank waits from its own arrival in a collective (the start of its kernel) to the arrival of the last rank, at
    most to its own end. The last rank is charged with all the waiting. Sums over concurrent collectives count each
    instant once. Times are aligned by the ends of collectives (see `rank_match`); waits below `clock_spread_ns` are
    noise.
    """
    collectives = all_collectives(traces)
    clocks = align(collectives, list(traces))
    parts = match(collectives, clocks)
    last_start = parts.groupby("match")["start_ns"].transform("max")
    wait = np.maximum(np.minimum(last_start, parts["end_ns"]) - parts["start_ns"], 0).astype("int64")
    late = parts.sort_values(["match", "start_ns", "rank"], ascending=[True, False, True], kind="stable")
    is_last = ~parts.index.isin(late.index[late.duplicated("match")])
    complete = _is_complete(parts, all_read=ranks_not_read(list(traces.values())) == 0)
    matched = parts.assign(
        complete=complete, wait_ns=wait.astype("Int64").where(complete), least_wait_ns=wait, last=is_last
    )
    return matched[names_of(MatchedCollective)], _waits(matched, collectives, clocks)


def ranks_not_read(traces: Sequence[Trace]) -> int:
    """The number of ranks of the job whose traces are not among these; 0 where the traces do not say how many it has.

    A rank's number says that there are at least as many, also where a trace does not say how many.
    """
    sizes = [trace.meta.world_size for trace in traces if trace.meta.world_size is not None]
    numbers = {trace.rank for trace in traces if trace.rank is not None}
    world = max([*sizes, *(number + 1 for number in numbers)], default=0)
    return max(world - len(traces), 0)


def _is_complete(parts: pd.DataFrame, *, all_read: bool) -> "pd.Series[bool]":
    """Whether all ranks of each collective's group hold it.

    A message has two. A batch of sends and receives may have fewer partners than its group has ranks, and a collective
    may lack the size of its group: these are complete where all ranks of the job were read.
    """
    held = parts.groupby("match")["rank"].transform("nunique")
    needed = parts["ranks"].where(parts["collective"] != SEND_RECV)
    needed = needed.mask(parts["is_message"].to_numpy(dtype=bool), 2)
    return (held >= needed).fillna(all_read).astype(bool)


def _waits(matched: pd.DataFrame, collectives: pd.DataFrame, clocks: Clocks) -> pd.DataFrame:
    complete = matched[matched["complete"]]
    second = complete[~complete["last"]].groupby("match")["start_ns"].max()
    waits = []
    for rank in clocks.offset:
        of_rank = matched[matched["rank"] == rank]
        known = complete[complete["rank"] == rank]
        last = known[known["last"]].set_index("match")
        of_other_ranks = complete[complete["match"].isin(last.index) & (complete["rank"] != rank)]
        measured = len(known) > 0
        alone = list(clocks.component.values()).count(clocks.component[rank]) == 1
        waits.append(
            {
                "rank": rank,
                "clock_offset_ns": None if alone else clocks.offset[rank],
                "clock_spread_ns": clocks.spread[rank],
                "collectives": int((collectives["rank"] == rank).sum()),
                "matched": len(of_rank),
                "complete": len(known),
                "last": len(last) if measured else None,
                "wait_ns": _waited(known) if measured else None,
                "least_wait_ns": _waited(of_rank) if len(of_rank) > len(known) else None,
                "caused_ns": sum(_waited(part) for _, part in of_other_ranks.groupby("rank")) if measured else None,
                "delay_ns": _measure(second[last.index], last["start_ns"]) if measured else None,
            }
        )
    return frame_of(RankWait, waits)


def _waited(parts: pd.DataFrame) -> int:
    """One rank's waiting in these collectives for the ranks that were read, each instant counted once, in ns."""
    return _measure(parts["start_ns"], parts["start_ns"] + parts["least_wait_ns"])


def _measure(start: pd.Series, end: pd.Series) -> int:
    return intervals.measure(intervals.union(intervals.spans(start.to_numpy(), end.to_numpy())))


def straggler(waits: pd.DataFrame) -> Straggler | None:
    """The rank that causes most of the waiting (`straggler_share`), if its delays exceed the clocks' noise.

    They do if its mean delay, over the collectives where it was last, is above every rank's `clock_spread_ns`.
    """
    caused = waits["caused_ns"].fillna(0).to_numpy(dtype=np.int64)
    if caused.sum() == 0:
        return None
    row = waits.iloc[int(np.argmax(caused))]
    share = float(caused.max() / caused.sum())
    noise = waits["clock_spread_ns"].fillna(0).max()
    if share <= straggler_share(int((waits["complete"] > 0).sum())) or row["delay_ns"] / max(row["last"], 1) <= noise:
        return None
    return Straggler(rank=int(row["rank"]), share=share, caused_ns=int(row["caused_ns"]), delay_ns=int(row["delay_ns"]))


def rank_kernels(traces: dict[int, Trace]) -> pd.DataFrame:
    """Each kernel's time across ranks: `RankKernel`, the kernel with the most time first.

    Figures are over the ranks that ran the kernel; the others do not count as 0.
    """
    parts = [recorded_kernels(t).assign(rank=rank) for rank, t in traces.items() if t.devices]
    if not parts:
        return frame_of(RankKernel)
    kernels = pd.concat(parts, ignore_index=True)
    groups = kernels.groupby(["class", "name"], sort=True)
    over_ranks = {f"mean_{how}_ns": ("mean_ns", how) for how in ("min", "median", "max")}
    table = groups.agg(ranks=("rank", "size"), count=("count", "sum"), sum_ns=("sum_ns", "sum"), **over_ranks)
    table["slowest_rank"] = kernels.loc[groups["mean_ns"].idxmax().to_numpy(), "rank"].to_numpy()
    # Short names that are unique on one rank may not be unique on all together.
    table = table.reset_index()
    table["short_name"] = table["name"].map(short_names(kernels["name"]))
    table = table.sort_values(["sum_ns", "name"], ascending=[False, True], kind="stable", ignore_index=True)
    return frame_of(RankKernel, table)


def tables(traces: Sequence[Trace]) -> dict[str, pd.DataFrame]:
    """`rank_waits`, `matched_collectives` and `rank_kernels`."""
    traces_by_rank = by_rank(traces)
    matched, waits = matched_collectives(traces_by_rank)
    return {"rank_waits": waits, "matched_collectives": matched, "rank_kernels": rank_kernels(traces_by_rank)}


def ranks(
    summaries: Sequence[TraceSummary], folder: Path, tables: Mapping[str, pd.DataFrame], *, not_read: int = 0
) -> Ranks:
    """The ranks' waits and the kernels with the most time; `straggler` None if no rank stands out.

    Args:
        summaries: of each rank.
        folder: of the traces, and of a run's communication.json.
        tables: `tables` of the same traces.
        not_read: the ranks of the job whose traces were not read.
    """
    waits = tables["rank_waits"]
    matched = tables["matched_collectives"]
    whole = matched["match"].where(matched["complete"])
    by_name = matched.assign(whole=whole).groupby(["collective", "group"], dropna=False, sort=True)
    waited = by_name.agg(
        count=("match", "nunique"),
        complete=("whole", "nunique"),
        wait_ns=("wait_ns", sum_of_known),
        least_wait_ns=("least_wait_ns", "sum"),
    ).reset_index()
    waited["least_wait_ns"] = waited["least_wait_ns"].astype("Int64").where(waited["complete"] < waited["count"])
    return Ranks(
        count=len(summaries),
        not_read=not_read,
        straggler=straggler(waits),
        waits=rows(waits, RankWait),
        collectives=RankCollectives(
            total=int(waits["collectives"].sum()),
            matched=len(matched),
            matched_by={str(how): int(n) for how, n in matched["matched_by"].value_counts().sort_index().items()},
            by_name=rows(waited.sort_values("wait_ns", ascending=False, kind="stable"), MatchedName),
        ),
        kernels=rows(tables["rank_kernels"].head(MOST_KERNELS), RankKernel),
        all_reduce=_all_reduce(summaries, matched, _communication(folder)),
    )


def _all_reduce(
    traces: Sequence[TraceSummary], matched: pd.DataFrame, communication: Communication | None
) -> RankAllReduce | None:
    """All-reduce figures per step, medians over the ranks, and the expected time by the run's communication.json.

    None without all-reduces in steps. `wait_ns_per_step` is the ranks' mean waiting inside collectives.
    """
    stepped = [trace for trace in traces if trace.quality.steps]
    figures = [(all_reduce, trace.quality.steps) for trace in stepped if (all_reduce := trace.all_reduce) is not None]
    if not figures:
        return None
    reduces = matched[(matched["collective"] == ALL_REDUCE) & matched["step"].notna()]
    is_known = waiting_known(reduces["dur_ns"], reduces["complete"])
    waited = [_waited(reduces_of_rank) for _, reduces_of_rank in reduces.groupby("rank")] if is_known else []
    steps = median(trace.quality.steps for trace in stepped)
    overlaps = [rank.overlap for rank, _ in figures if rank.overlap is not None]
    return RankAllReduce(
        source=figures[0][0].source,
        **{
            f"{name}_per_step": _per_step([(getattr(rank, name), reduces_of_rank) for rank, reduces_of_rank in figures])
            for name in _PER_STEP
        },
        overlap=median(overlaps) if overlaps else None,
        wait_ns_per_step=mean(waited) / steps if waited else None,
        expected_ns=None if communication is None else communication.expected_ns,
        simplified_ns=None if communication is None else communication.simplified_ns,
        bus_bytes_per_s=None if communication is None else communication.bus_bytes_per_s,
        link_ns_per_step=_per_step([(rank.expected_ns, reduces_of_rank) for rank, reduces_of_rank in figures]),
        link_by=figures[0][0].expected_by,
    )


def _per_step(sums: Sequence[tuple[int | None, int]]) -> float | None:
    """The median over the ranks of a figure per step, from its sums over the steps; None if a rank lacks it."""
    per_step = [total / steps for total, steps in sums if total is not None]
    return float(median(per_step)) if len(per_step) == len(sums) else None


def _communication(folder: Path) -> Communication | None:
    """The run's communication.json; None without one beside the traces."""
    try:
        return read_communication(folder)
    except RecordError:
        return None  # optional: the traces can be analysed without it
