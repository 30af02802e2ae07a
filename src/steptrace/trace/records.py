"""Missing and wrong records of a GPU: launches whose work the trace lacks, and ends that cannot be right.

The profiler loses records without a word: at the start of a recording, at its end, where its buffers overran, of graphs
that were captured before it was there, or all of them. A launch of a kernel or of a graph always puts work on a GPU, so
one without any shows the loss. Work whose launch is not known may be that launch's: as many launches as there is such
work are not counted as lost.

Steps with lost records are left out, so that no mean counts them as idle: what stays is the longest row of steps
without a loss. Where none stays, or where records are missing in the middle of a trace without steps, the GPU was not
measured.

Work of one stream runs in sequence. An end after the starts of several later launches of its stream is stale (AMD's
profiler writes such after a stall), and is cut at the next start.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from steptrace.documents.quality import CutEnd, LeftOutStep, LostRecords, Place
from steptrace.intervals import Ints
from steptrace.trace import names as naming
from steptrace.trace.columns import Columns, Mask, by_name

#: Above this share of launches without their work a step's GPU figures are not of all its work.
LOST_SHARE: Final = 0.01
#: A loss is in one place if that holds this share of the lost launches.
_MOSTLY: Final = 0.9
#: An end is stale if so many later launches of the stream start before it. Launches that overlap by design
#: (programmatic dependent launch) overlap with the next one.
STALE_OVER: Final = 3
#: Above this share of stale ends a stream's number stands for several streams, and none is cut.
_MOST_STALE: Final = 0.1
#: Overlap that the resolution of old traces explains.
_TOLERANCE_NS: Final = 2_000


class Records(NamedTuple):
    """What of a GPU's records is missing or was corrected; `whole`: whether the GPU's figures can be computed."""

    lost: tuple[LostRecords, ...] = ()
    left_out: tuple[LeftOutStep, ...] = ()
    cut: tuple[CutEnd, ...] = ()
    whole: bool = True


#: Nothing is missing.
WHOLE: Final = Records()


def lost_launches(calls: Columns, gpu: Columns, launch: Ints, names: pd.Index) -> Mask:
    """A mask of the calls that always put work on a GPU, and have none in the trace.

    Args:
        calls: the calls into the runtime.
        gpu: the GPU's activities, in order of start.
        launch: the row of `calls` that launched each activity, -1 if unknown.
        names: the text of each name's number.
    """
    launches = launching(calls, names)
    has_work = np.zeros(len(launches), dtype=bool)
    has_work[launch[launch >= 0]] = True
    lost: Mask = launches & ~has_work
    if not lost.any() or not len(launch):
        return lost
    unlinked = 0
    for device in np.unique(gpu["device"]):
        here = gpu["device"] == device
        linked = here & (launch >= 0)
        # What comes before all linked work was launched before the recording.
        first = gpu["ts"][linked].min() if linked.any() else gpu["ts"][here].min()
        unlinked += int((here & (launch < 0) & (gpu["ts"] >= first)).sum())
    return lost if int(lost.sum()) > unlinked else np.zeros(len(lost), dtype=bool)


def launching(calls: Columns, names: pd.Index) -> Mask:
    """A mask of the calls that always put work on a GPU; launches that a graph only captures do not run."""
    launches = by_name(calls["name"], names, lambda name: naming.launch_kind(name) is not None)
    begins = np.sort(calls["ts"][by_name(calls["name"], names, naming.begins_capture)])
    if len(begins) == 0:
        return launches
    ends = np.sort(calls["ts"][by_name(calls["name"], names, naming.ends_capture)])
    begun, ended = (np.searchsorted(times, calls["ts"], side="right") for times in (begins, ends))
    captured: Mask = begun > ended
    return launches & ~captured


def complete_steps(steps: pd.DataFrame, call_step: Ints, lost: Mask, launches: Mask) -> tuple[slice, bool]:
    """The row of steps without lost records that has most steps with launches, the first of several.

    Returns all steps and False if there is no such step, and else True.

    Args:
        steps: the steps, in order of time.
        call_step: the step of each call, -1 outside.
        lost, launches: masks of the calls.
    """
    count = len(steps)
    inside = call_step >= 0
    of_step = np.bincount(call_step[inside & launches], minlength=count)
    lost_of_step = np.bincount(call_step[inside & lost], minlength=count)
    complete = lost_of_step <= LOST_SHARE * of_step
    with_work = np.concatenate([[0], np.cumsum(complete & (of_step > 0))])
    edges = np.flatnonzero(np.diff(np.concatenate([[0], complete.astype(np.int8), [0]])))
    first, stop = edges[::2], edges[1::2]
    sizes = with_work[stop] - with_work[first]
    if not sizes.any():
        return slice(0, count), False
    longest = int(np.argmax(sizes))
    return slice(int(first[longest]), int(stop[longest])), True


def span_is_complete(ts: Ints, lost: Mask, launches: Mask) -> bool:
    """Whether hardly any launch is lost between the first and the last one with work: that span is then measured."""
    order = np.flatnonzero(launches)
    order = order[np.argsort(ts[order], kind="stable")]
    kept = np.flatnonzero(~lost[order])
    if len(kept) == 0:
        return False
    within = lost[order][kept[0] : kept[-1] + 1]
    return bool(within.sum() <= LOST_SHARE * len(within))


def lost_records(calls: Columns, names: pd.Index, lost: Mask, launches: Mask) -> Iterator[LostRecords]:
    """For kernels and for graphs, how many launches have lost their work, and where in the trace."""
    kinds = by_name(calls["name"], names, naming.launch_kind, object)
    for kind in ("kernel", "graph"):
        rows = np.flatnonzero(launches & (kinds == kind))
        rows = rows[np.argsort(calls["ts"][rows], kind="stable")]
        missing = lost[rows]
        if missing.any():
            yield LostRecords(launch=kind, place=_place(missing), lost=int(missing.sum()), of=len(rows))


def _place(missing: Mask) -> Place:
    """Where in the order of time the lost ones are."""
    count = int(missing.sum())
    if count == len(missing):
        return "all"
    edges = np.flatnonzero(np.diff(np.concatenate([[0], missing.astype(np.int8), [0]])))
    lengths = edges[1::2] - edges[::2]
    if missing[0] and lengths[0] >= _MOSTLY * count:
        return "start"
    if missing[-1] and lengths[-1] >= _MOSTLY * count:
        return "end"
    return "middle" if count > 1 and int(lengths.max()) >= _MOSTLY * count else "scattered"


def cut_stale_ends(gpu: Columns, names: pd.Index) -> tuple[CutEnd, ...]:
    """Cut stale ends at the next start of their stream, in `gpu` (in order of start), and say which they were."""
    cut: list[CutEnd] = []
    key = np.column_stack([gpu["device"], gpu["stream"]])
    order = np.lexsort((gpu["ts"], gpu["stream"], gpu["device"]))
    bounds = np.flatnonzero((np.diff(key[order], axis=0) != 0).any(axis=1)) + 1
    for rows in np.split(order, bounds):
        for row, until in _stale(gpu["ts"][rows], gpu["end"][rows], gpu["correlation"][rows]):
            at = rows[row]
            was = int(gpu["dur"][at])
            gpu["end"][at] = until
            gpu["dur"][at] = until - gpu["ts"][at]
            cut.append(
                CutEnd(
                    name=str(names[gpu["name"][at]]),
                    device=int(gpu["device"][at]),
                    stream=int(gpu["stream"][at]),
                    recorded_ns=was,
                    kept_ns=int(gpu["dur"][at]),
                )
            )
    return tuple(sorted(cut, key=lambda one: (one.kept_ns - one.recorded_ns, one.name)))


def _stale(start: Ints, end: Ints, correlation: Ints) -> list[tuple[int, int]]:
    """Row and next start of each stale end of one stream, whose activities come in order of start."""
    over = np.searchsorted(start, end - _TOLERANCE_NS, side="left") - np.arange(len(start)) - 1
    rows = np.flatnonzero(over >= STALE_OVER)
    found: list[tuple[int, int]] = []
    for row in rows.tolist():
        later: Any = slice(row + 1, row + 1 + int(over[row]))
        # Branches of a graph may run at once: they have one launch.
        others = correlation[later] != correlation[row]
        if np.count_nonzero(others) >= STALE_OVER:
            found.append((row, int(start[later][others][0])))
    # Starts at the very same time say nothing of the end.
    found = [(row, until) for row, until in found if until > start[row]]
    return found if len(found) <= max(1, _MOST_STALE * len(start)) else []
