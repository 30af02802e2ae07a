"""The picture of one step of several ranks: a lane a rank, on one clock where their collectives tell how clocks differ.

A lane shows the parts of the rank's GPU, or without a GPU of its step on the host. Exposed communication is divided
into waiting for other ranks, transfer, and what may be either since ranks were not read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Final

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.division import Division, divide, gpu_division, host_division
from steptrace.analysis.rank_match import zeros_of
from steptrace.analysis.timeline import Events, boxes_of, joined, of_division
from steptrace.documents.ranks import Straggler
from steptrace.documents.timeline import Lane, RankTimeline
from steptrace.intervals import Spans
from steptrace.trace.columns import row_numbers
from steptrace.trace.model import Trace, working_steps

#: Most ranks with a lane: the straggler, and others at equal distances.
MOST_LANES: Final = 16
_COMMUNICATION: Final = "exposed_comm"
_WAIT: Final = "exposed_wait"
_TRANSFER: Final = "exposed_transfer"


@dataclass(frozen=True)
class _Shown:
    """The time of one rank that is shown, on its own clock, and what to add to get to the picture's."""

    rank: int
    start: int
    end: int
    shift: int


def rank_timeline(
    traces: Mapping[int, Trace], tables: Mapping[str, pd.DataFrame], straggler: Straggler | None
) -> RankTimeline | None:
    """The picture; None where no step is in all traces, or nothing ran in it.

    The step is the one of median length, on average over the ranks. Traces that mark no steps are shown as wholes.

    Args:
        traces: the traces by rank.
        tables: the tables across ranks, see `ranks.tables`.
        straggler: the rank that the others wait for, which has a lane in any case.
    """
    chosen = {rank: traces[rank] for rank in _chosen(list(traces), straggler)}
    windows = _windows(chosen)
    if windows is None:
        return None
    step, spans = windows
    shown, is_aligned = _on_one_clock(spans, zeros_of(traces), tables["rank_waits"])
    lanes = [_events(chosen[row.rank], row, tables["matched_collectives"]) for row in shown]
    origin = min(row.start + row.shift for row in shown)
    span = max(max(row.end + row.shift for row in shown) - origin, 1)
    boxes = boxes_of(lanes, origin, span)
    if not any(map(len, boxes)):
        return None
    return RankTimeline(
        step=step,
        span_ns=span,
        lanes=tuple(
            Lane(name=events.name, kind=events.kind, boxes=joined(of_lane))
            for events, of_lane in zip(lanes, boxes, strict=True)
        ),
        is_aligned=is_aligned,
    )


def _chosen(ranks: Sequence[int], straggler: Straggler | None) -> list[int]:
    """The ranks that have a lane, in their order."""
    if len(ranks) <= MOST_LANES:
        return list(ranks)
    spaced = {ranks[round(place * (len(ranks) - 1) / (MOST_LANES - 1))] for place in range(MOST_LANES)}
    late = None if straggler is None else straggler.rank
    if late is not None and late in ranks and late not in spaced:
        spaced.remove(min(spaced - {ranks[0]}, key=lambda rank: abs(rank - late)))
        spaced.add(late)
    return [rank for rank in ranks if rank in spaced]


def _windows(traces: Mapping[int, Trace]) -> tuple[int | None, dict[int, tuple[int, int]]] | None:
    """The number of the step that is shown, and its start and end by rank; None if the traces share no step."""
    if not any(len(trace.steps) for trace in traces.values()):
        return None, {rank: trace.window for rank, trace in traces.items()}
    by_rank: dict[int, dict[int, tuple[int, int]]] = {}
    for rank, trace in traces.items():
        steps = trace.steps.iloc[working_steps(trace)]
        starts, ends = steps["ts"], steps["ts"] + steps["dur"]
        by_rank[rank] = {
            int(index): (int(start), int(end)) for index, start, end in zip(steps["index"], starts, ends, strict=True)
        }
    shared = set.intersection(*(set(steps) for steps in by_rank.values()))
    if not shared:
        return None
    lengths = {index: mean(steps[index][1] - steps[index][0] for steps in by_rank.values()) for index in shared}
    by_length = sorted(shared, key=lambda index: (lengths[index], index))
    step = by_length[(len(by_length) - 1) // 2]
    return step, {rank: steps[step] for rank, steps in by_rank.items()}


def _on_one_clock(
    spans: Mapping[int, tuple[int, int]], zeros: Mapping[int, int], waits: pd.DataFrame
) -> tuple[list[_Shown], bool]:
    """The time of each rank, and whether the picture has one clock; otherwise each rank begins at its own start.

    `zeros` are the times 0 of the ranks' tables from a common zero. Clocks that no collective compares are on no
    common one. Starts that lie further apart than the step is long are taken for clocks that were not compared with
    each other.
    """
    compared = waits[waits["clock_offset_ns"].notna()]
    offsets = {int(row["rank"]): int(row["clock_offset_ns"]) for row in compared.to_dict("records")}
    known = {rank: zeros[rank] + offsets[rank] for rank in spans if rank in offsets}
    starts = [span[0] + known[rank] for rank, span in spans.items() if rank in known]
    longest = max(end - start for start, end in spans.values())
    is_aligned = len(known) == len(spans) and max(starts) - min(starts) <= longest
    return [
        _Shown(rank, start, end, known[rank] if is_aligned else -start) for rank, (start, end) in spans.items()
    ], is_aligned


def _events(trace: Trace, shown: _Shown, matched: pd.DataFrame) -> Events:
    """The lane of a rank, on the picture's clock."""
    name = f"Rank {shown.rank}"
    if trace.device is None:
        events = of_division(name, "host", host_division(trace))
    else:
        events = of_division(name, "gpu", _with_waits(trace, gpu_division(trace), shown.rank, matched))
    return events.within(shown.start, shown.end).shifted(shown.shift)


def _with_waits(trace: Trace, division: Division, rank: int, matched: pd.DataFrame) -> Division:
    """The division with its exposed communication divided into waiting, transfer, and what may be either.

    The last is what follows the last rank's start where ranks of the group were not read.
    """
    of_rank = matched[(matched["rank"] == rank).to_numpy() & matched["kernel"].notna().to_numpy()]
    if of_rank.empty or _COMMUNICATION not in division.parts:
        return division
    start = trace.kernels["ts"].to_numpy(dtype=np.int64)[row_numbers(of_rank["kernel"])]
    waits, length = (of_rank[name].to_numpy(dtype=np.int64) for name in ("least_wait_ns", "dur_ns"))
    waiting = intervals.union(intervals.spans(start, start + waits))
    known = of_rank["complete"].to_numpy(dtype=bool)
    transfer = intervals.union(intervals.spans((start + waits)[known], (start + length)[known]))
    exposed: Spans = division.spans[division.part == division.parts.index(_COMMUNICATION)]
    split = divide(
        exposed, [(_WAIT, waiting), (_TRANSFER, transfer)], _COMMUNICATION, (_WAIT, _TRANSFER, _COMMUNICATION)
    )
    parts = (*division.parts, _WAIT, _TRANSFER)
    rest = division.part != division.parts.index(_COMMUNICATION)
    spans = np.concatenate([division.spans[rest], split.spans])
    places = np.array([parts.index(name) for name in split.parts])
    part = np.concatenate([division.part[rest], places[split.part]]).astype(np.int8)
    order = np.argsort(spans[:, 0], kind="stable")
    return Division(parts, spans[order], part[order])
