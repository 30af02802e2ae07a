"""Matches the activities of one collective across ranks, and aligns the ranks' clocks.

A collective that PyTorch numbered is matched by its process group and number. The host's own are matched as the n-th of
their size in the step: every rank must start them in the same order. Others are matched by time: a collective ends at
about the same instant on all its ranks, and each rank is in it before the first one leaves.

Machines' clocks differ, and a trace may count from its own start. So the clocks are aligned first: each rank's offset
is the median of the densest third of the differences between the ends of its collectives and those of ranks already
aligned, collectives paired by number, or else (three pairs at least) by step and order on their stream. Two thirds of
the pairs may be wrong.
"""

from bisect import insort
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from steptrace.analysis.communication import CollectiveTime, gpu_collectives, host_collectives
from steptrace.documents.table import names_of
from steptrace.intervals import Ints
from steptrace.trace.columns import row_numbers, unmeasured
from steptrace.trace.model import Trace

#: Collectives that end at about the same time on every rank; a broadcast's root may leave early.
_ENDS_TOGETHER = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", "send_recv"})
_POINT_TO_POINT = frozenset({"send", "recv"})
#: A batch of sends and receives; also the name of both halves of a message here.
SEND_RECV = "send_recv"
#: Ends further apart than half of the shorter span belong to different collectives; allows for alignment errors.
_ALLOWED_SPREADS = 3

_ADDED = ["rank", "start", "end", "is_message", "sequence", "group_key", "step_index", "pairing"]
_COLUMNS = [*names_of(CollectiveTime), *_ADDED]

#: Fewest pairs by order alone: a single one always fits.
_LEAST_PAIRS = 3


@dataclass(frozen=True)
class Clocks:
    """Per rank the offset to add to its times, its uncertainty, and the group of ranks aligned together.

    `offset` is in ns. `spread`, half the width of the differences it is from, is None for a first rank, and with fewer
    than six pairs. Ranks of different `component` share too few collectives: their times cannot be compared.
    """

    offset: dict[int, int]
    spread: dict[int, int | None]
    component: dict[int, int]


def zeros_of(traces: Mapping[int, Trace]) -> dict[int, int]:
    """The time 0 of each rank's tables in ns from a common zero; 0 where not all traces say when they began."""
    bases = {rank: trace.meta.base_ns for rank, trace in traces.items()}
    known = [base for base in bases.values() if base is not None]
    if len(known) < len(bases):
        return dict.fromkeys(bases, 0)
    return {rank: (base or 0) - min(known) for rank, base in bases.items()}


def all_collectives(traces: dict[int, Trace]) -> pd.DataFrame:
    """The collectives of every rank: `collective_times` with `rank`, `start`, `end` (ns on the rank's own clock, from a
    common zero), `is_message` (from one rank to another), `sequence`, `group_key` and `pairing`, by which two ranks'
    activities are taken for one at first."""
    zeros = zeros_of(traces)
    parts = [_with_pairing(rank, trace, zeros[rank]) for rank, trace in traces.items()]
    parts = [part for part in parts if len(part)]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=_COLUMNS)


def _with_pairing(rank: int, trace: Trace, shift: int) -> pd.DataFrame:
    times, described = _collectives_of(trace)
    step = row_numbers(times["step"])
    index = trace.steps["index"].to_numpy()
    group = [
        None if pd.isna(name) else f"{name} {'' if pd.isna(ranks) else ranks}".strip()
        for name, ranks in zip(described["group"], described["group_ranks"], strict=True)
    ]
    streams = {stream: place for place, stream in enumerate(sorted(times["stream"].unique()))}
    point_to_point = times["collective"].isin(_POINT_TO_POINT)
    table = times.assign(
        rank=rank,
        start=times["ts"] + shift,
        end=times["ts"] + times["dur_ns"] + shift,
        is_message=point_to_point,
        # Each pair of ranks numbers its messages separately.
        sequence=described["sequence"].reset_index(drop=True).where(~point_to_point, pd.NA),
        collective=times["collective"].where(~point_to_point, SEND_RECV),
        group_key=pd.Series(group, dtype=object),
        step_index=np.where(step >= 0, index[np.maximum(step, 0)] if len(index) else 0, -1),
    )
    keys: list[Hashable] = []
    seen: defaultdict[Hashable, int] = defaultdict(int)
    for row in table.itertuples():
        key: tuple[Hashable, ...] = (row.collective, row.group_key)
        if not pd.isna(row.sequence):  # type: ignore[arg-type]
            key = (*key, "number", row.sequence)
        elif not trace.devices:
            key = (*key, "number", row.step_index, None if pd.isna(row.bytes) else row.bytes)  # type: ignore[arg-type]
        else:
            key = (*key, None if row.group_key else streams[row.stream], row.step_index)
        keys.append((*key, seen[key]))
        seen[key] += 1
    return table.assign(pairing=pd.Series(keys, dtype=object))


def _collectives_of(trace: Trace) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One rank's collectives with their properties: its GPU's, or without any the host's.

    The host's have no numbers, and any free thread takes the next one: they count as one stream.
    """
    if trace.devices:
        times = gpu_collectives(trace)
        return times, trace.collectives.set_index("kernel").loc[row_numbers(times["kernel"])]
    times = host_collectives(trace)
    unknown = pd.Series([None] * len(times), dtype=object)
    described = pd.DataFrame({"group": unknown, "group_ranks": unknown, "sequence": unmeasured(len(times))})
    return times.assign(stream=0), described


def align(collectives: pd.DataFrame, ranks: Sequence[int]) -> Clocks:
    """How far each rank's clock is off the first one's, from the ends of collectives.

    The rank that shares most with those already aligned is next.
    """
    together = collectives[collectives["collective"].isin(_ENDS_TOGETHER)] if len(collectives) else collectives
    ends: dict[int, dict[Hashable, int]] = {rank: {} for rank in ranks}
    for source in (together, collectives):  # the others only for ranks that share none of the first
        for rank, of_rank in source.groupby("rank", sort=False):
            if not ends[int(str(rank))]:
                ends[int(str(rank))] = dict(zip(of_rank["pairing"], of_rank["end"].astype("int64"), strict=True))
    clocks = Clocks({}, {}, {})
    aligned = _Aligned(ends)
    waiting = list(ranks)
    while waiting:
        rank = max(waiting, key=aligned.pairs)
        if not aligned.pairs(rank):
            rank = waiting[0]
            aligned.clear()
            clocks.offset[rank] = 0
            clocks.spread[rank] = None
            clocks.component[rank] = rank
        else:
            clocks.offset[rank], clocks.spread[rank] = _densest_third(aligned.differences(rank))
            clocks.component[rank] = next(reversed(clocks.component.values()))
        waiting.remove(rank)
        aligned.add(rank, clocks.offset[rank])
    return clocks


class _Aligned:
    """The ends of the collectives of aligned ranks, and how many of them each other rank shares.

    The counts follow each addition, so that aligning takes time in proportion to the collectives of all ranks.
    """

    def __init__(self, ends: Mapping[int, Mapping[Hashable, int]]) -> None:
        self._ends = ends
        self._holders: defaultdict[Hashable, list[int]] = defaultdict(list)
        for rank, of_rank in ends.items():
            for key in of_rank:
                self._holders[key].append(rank)
        self.clear()

    def clear(self) -> None:
        """Forget the aligned ranks: what follows is compared with ranks that are added from here on."""
        self._sorted_ends: dict[Hashable, list[int]] = {}
        self._numbered = dict.fromkeys(self._ends, 0)
        self._by_order = dict.fromkeys(self._ends, 0)

    def pairs(self, rank: int) -> int:
        """How many collectives a rank can be aligned by: the numbered ones, or else all if there are enough."""
        return self._numbered[rank] or (self._by_order[rank] if self._by_order[rank] >= _LEAST_PAIRS else 0)

    def differences(self, rank: int) -> Ints:
        """What to add to a rank's ends of these collectives to get the median end of the aligned ranks."""
        numbered = self._numbered[rank] > 0
        return np.array(
            [
                _median(self._sorted_ends[key]) - end
                for key, end in self._ends[rank].items()
                if key in self._sorted_ends and (_is_numbered(key) or not numbered)
            ]
        )

    def add(self, rank: int, offset: int) -> None:
        """Add a rank, whose clock is off by `offset`, to the aligned ones."""
        for key, end in self._ends[rank].items():
            if key not in self._sorted_ends:
                self._sorted_ends[key] = []
                counts = self._numbered if _is_numbered(key) else self._by_order
                for holder in self._holders[key]:
                    counts[holder] += 1
            insort(self._sorted_ends[key], end + offset)


def _is_numbered(pairing: Hashable) -> bool:
    return isinstance(pairing, tuple) and pairing[2] == "number"


def _median(ordered: Sequence[int]) -> int:
    """The median of sorted times, in whole ns."""
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2


def _densest_third(values: Ints) -> tuple[int, int | None]:
    """The median of the shortest interval that holds a third of the values, and half its length.

    Half its length is None for fewer than six values: with few values, two lie close together by chance.
    """
    ordered = np.sort(values)
    many = min(len(ordered), max(2, -(-len(ordered) // 3)))
    widths = ordered[many - 1 :] - ordered[: len(ordered) - many + 1]
    first = int(np.argmin(widths))
    middle = round(float(np.median(ordered[first : first + many])))
    return middle, int(widths[first]) // 2 if len(ordered) > 5 else None


@dataclass
class _Cluster:
    """Activities of one collective so far."""

    rows: list[int]
    ranks: set[int]
    last_start: int
    first_end: int
    shortest: int

    def add(self, row: int, rank: int, start: int, end: int) -> None:
        self.rows.append(row)
        self.ranks.add(rank)
        self.last_start = max(self.last_start, start)
        self.first_end = min(self.first_end, end)
        self.shortest = min(self.shortest, end - start)


def match(collectives: pd.DataFrame, clocks: Clocks) -> pd.DataFrame:
    """The activities that are part of a collective on at least two ranks.

    Returns the rows of `all_collectives` with `match`, a number of the collective from 0 in order of time,
    `matched_by`, and `start_ns` and `end_ns`, aligned.
    """
    if len(collectives) == 0:
        return collectives.assign(match=0, matched_by="", start_ns=0, end_ns=0)
    offset = collectives["rank"].map(clocks.offset).astype("int64")
    start, end = collectives["start"] + offset, collectives["end"] + offset
    table = collectives.assign(start_ns=start, end_ns=end, matched_by="")
    by_order = table["label"].notna().to_numpy()
    numbered = table["sequence"].notna().to_numpy() | by_order
    groups: list[tuple[str, list[int]]] = [
        ("order" if by_order[rows[0]] else "sequence", list(rows))
        for rows in table[numbered].groupby("pairing", sort=False).groups.values()
    ]
    component = table["rank"].map(clocks.component)
    allowed = _ALLOWED_SPREADS * max((spread for spread in clocks.spread.values() if spread is not None), default=0)
    for _, rows in table[~numbered].groupby([component, "collective", "group_key"], dropna=False, sort=False):
        groups += [("time", rows_) for rows_ in _by_time(rows, allowed)]
    ends = dict(zip(table.index.tolist(), table["end_ns"].tolist(), strict=True))
    several = [(how, rows) for how, rows in groups if len(rows) > 1]
    several.sort(key=lambda g: (min(ends[row] for row in g[1]), g[1]))
    sizes = [len(rows) for _, rows in several]
    matched = table.loc[[row for _, rows in several for row in rows]].reset_index(drop=True)
    matched["matched_by"] = [how for how, rows in several for _ in rows]
    return matched.assign(match=np.repeat(np.arange(len(several)), sizes))


def _by_time(rows: pd.DataFrame, allowed: int) -> Iterator[list[int]]:
    """Clusters of activities of one kind that have an instant in common and end together, at most one of a rank."""
    open_: list[_Cluster] = []
    clusters: list[_Cluster] = []
    order: NDArray[np.intp] = np.lexsort((rows["rank"], rows["end_ns"]))
    columns = (rows.index.to_numpy(), *(rows[c].to_numpy() for c in ("rank", "start_ns", "end_ns")))
    for row, rank, start, end in zip(*(column[order].tolist() for column in columns), strict=True):
        open_ = [c for c in open_ if end - c.first_end <= max(c.shortest // 2, allowed)]
        fitting = [
            c
            for c in open_
            if rank not in c.ranks
            and max(start, c.last_start) < c.first_end + allowed
            and end - c.first_end <= max(min(c.shortest, end - start) // 2, allowed)
        ]
        if fitting:
            min(fitting, key=lambda c: end - c.first_end).add(row, rank, start, end)
        else:
            open_.append(_Cluster([row], {rank}, start, end, end - start))
            clusters.append(open_[-1])
    return (cluster.rows for cluster in clusters)
