"""Records that the profiler has lost: launches whose work the trace lacks, and work whose launch it lacks.

The profiler can lose records silently: at the start or the end of a recording, where its buffers overran, of graphs
that were captured before it was started, or all of them. A launch of a kernel or of a graph always puts work on a GPU,
so a launch without work shows the loss. GPU work without a known launch may belong to such a launch, so one launch for
each such activity is not counted as lost.

A graph launch can also have lost a part of its work. That shows where another launch of the same graph has more: the
graph is known by its id, or, where the profiler writes none, as the one in the same place of each step.

`trace.kept_steps` says which steps are kept where records are lost, `trace.wrong_times` corrects impossible times.
"""

import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from steptrace.documents.quality import CutEnd, LeftOutStep, LostRecords, Place
from steptrace.intervals import Ints
from steptrace.trace import names as naming
from steptrace.trace.columns import Columns, Mask, by_name
from steptrace.trace.decode import MISSING

#: Above this share of launches without their work a step's GPU figures are not of all its work.
LOST_SHARE: Final = 0.01
#: A loss has one place if this share of the lost launches lies there.
_MOSTLY: Final = 0.9
#: The fewest launches of a graph from which its usual work is known.
_FEWEST_GRAPHS: Final = 3
#: Below this share of GPU work with a known launch, what follows from launches is not known.
LAUNCH_COVERAGE: Final = 0.95


class Records(NamedTuple):
    """Missing and corrected records.

    `without_call` is the number of the GPU's activities whose call is missing, `gaps` that of the places between steps
    where others are missing, `empty` that of the steps without any event.

    `must_wait` is the number of places that must hold a wait, `lost_waits` that of those without one, and `uncounted`
    that of those of them that no sync stands for. `no_wait` says whether no call at all waits, not even the profiler's
    own at its end. Of `named_operator` calls that launched work and name an operator, `without_operator` name one that
    is not in the trace.

    `whole` says whether the GPU's figures can be computed, `calls_whole` whether those of the host's calls can, and
    `waits_whole` whether those of its waits can.
    """

    lost: tuple[LostRecords, ...] = ()
    left_out: tuple[LeftOutStep, ...] = ()
    cut: tuple[CutEnd, ...] = ()
    starts: tuple[CutEnd, ...] = ()
    without_call: int = 0
    gaps: int = 0
    empty: int = 0
    whole: bool = True
    calls_whole: bool = True
    lost_waits: int = 0
    must_wait: int = 0
    uncounted: int = 0
    waits_whole: bool = True
    no_wait: bool = False
    without_operator: int = 0
    named_operator: int = 0


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
        # Work before all linked work was launched before the recording.
        first = gpu["ts"][linked].min() if linked.any() else gpu["ts"][here].min()
        unlinked += int((here & (launch < 0) & (gpu["ts"] >= first)).sum())
    return lost if int(lost.sum()) > unlinked else np.zeros(len(lost), dtype=bool)


def without_call(  # noqa: PLR0913 - the columns that it compares
    calls: Columns,
    gpu: Columns,
    launch: Ints,
    call_step: Ints,
    gpu_step: Ints,
    steps: int,
    *,
    first_lost: bool = False,
) -> tuple[Mask, Ints]:
    """A mask of the GPU's activities whose call the profiler has lost, so that calls that wait may be lost as well.

    Some calls are not recorded at all, and work at the start was launched before the recording. So a call is lost if
    other runs of the kernel have theirs, and either the work is neither older than all recorded calls, by its number,
    nor begins before all work with a call, or no call is recorded in the whole step, while others have some.

    The second value is the step of each such call: the one in which the work begins, or the nearest one that the
    numbers of the calls allow; -1 without steps.

    Args:
        calls: the calls into the runtime.
        gpu: the GPU's activities, in order of start.
        launch: the row of the call that launched each activity, -1 if unknown.
        call_step: the step of each call, -1 outside.
        gpu_step: the step in which each activity starts, -1 outside.
        steps: how many steps there are.
        first_lost: whether the first calls are missing, so that work at the start lacks its call, too.
    """
    alone = launch < 0
    step = np.full(len(launch), -1, dtype=np.int64)
    if not alone.any() or alone.all():
        return np.zeros(len(launch), dtype=bool), step
    numbered = np.unique(launch[~alone])
    numbered = numbered[call_step[numbered] >= 0] if steps else numbered
    numbered = numbered[np.argsort(calls["correlation"][numbered], kind="stable")]
    place = np.searchsorted(calls["correlation"][numbered], gpu["correlation"])
    begun = np.zeros(len(launch), dtype=bool)
    for device in np.unique(gpu["device"][~alone]):
        here = gpu["device"] == device
        begun |= here & (gpu["ts"] >= gpu["ts"][here & ~alone].min())
    oldest = calls["correlation"][calls["correlation"] > 0].min(initial=np.iinfo(np.int64).max)
    lost: Mask = (begun & (gpu["correlation"] > oldest)) | (first_lost & ~begun)
    in_step = np.bincount(call_step[call_step >= 0], minlength=steps)
    if in_step.any():
        lost |= (gpu_step >= 0) & (in_step[np.maximum(gpu_step, 0)] == 0)
        order = np.concatenate([[0], call_step[numbered], [steps - 1]])
        earliest, latest = np.sort([order[place], order[place + 1]], axis=0)
        step = np.clip(np.where(gpu_step >= 0, gpu_step, latest), earliest, latest)
    elif steps:  # no call is recorded in any step
        step = np.maximum(gpu_step, 0)
    return lost & alone & np.isin(gpu["name"], np.unique(gpu["name"][~alone])), step


def launched_before(start: Ints, linked: Mask) -> Mask:
    """A mask of one GPU's work that the host launched before the recording: it comes before all work with a launch.

    Where later work lacks its launch, too, launches were lost, and nothing says what was launched before.

    Args:
        start: the start of each activity.
        linked: whether the trace has its launch.
    """
    before: Mask = ~linked & (start < start[linked].min(initial=np.iinfo(np.int64).max))
    missing = int((~linked & ~before).sum())
    return before if missing <= (1 - LAUNCH_COVERAGE) * int((~before).sum()) else np.zeros_like(before)


def partly_lost(calls: Columns, gpu: Columns, launch: Ints, names: pd.Index, step: Ints) -> Mask:
    """A mask of the graph launches that have less work in the trace than others of the same graph.

    Args:
        calls: the calls into the runtime.
        gpu: the GPU's activities.
        launch: the row of `calls` that launched each activity, -1 if unknown.
        names: the text of each name's number.
        step: the step of each call, -1 outside.
    """
    count = len(calls["ts"])
    partly = np.zeros(count, dtype=bool)
    linked = launch >= 0
    work = np.bincount(launch[linked], minlength=count)
    graphs = np.flatnonzero(by_name(calls["name"], names, lambda n: naming.launch_kind(n) == "graph") & (work > 0))
    if len(graphs) < _FEWEST_GRAPHS:
        return partly
    graph_id = np.full(count, MISSING, dtype=np.int64)
    np.maximum.at(graph_id, launch[linked], gpu["graph"][linked])
    known = graph_id[graphs] > 0
    same = _by_number(graphs[known], graph_id[graphs[known]])
    if not known.any():
        same = _same_place(graphs[np.argsort(calls["ts"][graphs], kind="stable")], step)
    for rows in same:
        if len(rows) >= _FEWEST_GRAPHS:
            sizes, often = np.unique(work[rows], return_counts=True)
            usual = sizes[len(sizes) - 1 - int(np.argmax(often[::-1]))]
            partly[rows] = work[rows] < usual
    return partly


def _by_number(rows: Ints, numbers: Ints) -> list[Ints]:
    """The rows of each number."""
    order = np.argsort(numbers, kind="stable")
    return np.split(rows[order], np.flatnonzero(np.diff(numbers[order])) + 1)


def _same_place(graphs: Ints, step: Ints) -> list[Ints]:
    """The graph launches that are in the same place of each step; none if not all steps launch as many graphs.

    Args:
        graphs: the rows of the launches, in order of time.
        step: the step of each call, -1 outside.
    """
    graphs = graphs[step[graphs] >= 0]
    steps, launches = np.unique(step[graphs], return_counts=True)
    if len(steps) < _FEWEST_GRAPHS or len(np.unique(launches)) > 1:
        return []
    return list(graphs[np.argsort(step[graphs], kind="stable")].reshape(len(steps), -1).T)


def launching(calls: Columns, names: pd.Index) -> Mask:
    """A mask of the calls that always put work on a GPU; launches that a graph only captures do not run."""
    launches = by_name(calls["name"], names, lambda name: naming.launch_kind(name) is not None)
    return launches & ~captured(calls["ts"], calls["name"], names)


def copies_without_work(calls: Columns, gpu: Columns, launch: Ints, names: pd.Index) -> Mask:
    """A mask of the copies if none of them has its work in the trace, nor any such work lacks its call.

    A single one may be of no bytes, which leaves no record. Memory sets often leave none.
    """
    copies = by_name(calls["name"], names, lambda name: naming.is_async_copy(name) or naming.is_sync_copy(name))
    copies &= ~captured(calls["ts"], calls["name"], names)
    recorded = by_name(gpu["name"], names, lambda name: name.startswith("Memcpy"))
    linked = launch[launch >= 0]
    return copies if copies.sum() > 1 and not recorded.any() and not copies[linked].any() else np.zeros_like(copies)


def captured(ts: Ints, codes: NDArray[Any], names: pd.Index) -> Mask:
    """A mask of the calls that are made while a graph is captured: what they launch does not run.

    Args:
        ts: the start of each call.
        codes: the number of its name.
        names: the text of each name's number.
    """
    begins = np.sort(ts[by_name(codes, names, naming.begins_capture)])
    ends = np.sort(ts[by_name(codes, names, naming.ends_capture)])
    begun, ended = (np.searchsorted(times, ts, side="right") for times in (begins, ends))
    inside: Mask = begun > ended
    return inside


def lost_records(calls: Columns, names: pd.Index, lost: Mask, launches: Mask, partly: Mask) -> Iterator[LostRecords]:
    """For kernels, graphs and copies, how many launches have lost their work or (`partly`) some of it, and where."""
    kinds = by_name(calls["name"], names, lambda name: naming.launch_kind(name) or "copy", object)
    for kind in ("kernel", "graph", "copy"):
        rows = np.flatnonzero(launches & (kinds == kind))
        rows = rows[np.argsort(calls["ts"][rows], kind="stable")]
        missing = lost[rows]
        if missing.any():
            yield LostRecords(
                launch=kind,
                place=place_of(missing),
                lost=int(missing.sum()),
                of=len(rows),
                partly=int(partly[rows].sum()),
            )


def place_of(missing: Mask) -> Place:
    """Where in the order of time the lost ones are.

    They are in one place if a stretch of at most half the trace holds most of them. One of several streams or GPUs may
    have lost its work, so that the stretch has launches with work, too.
    """
    rows = np.flatnonzero(missing)
    count = len(rows)
    total = len(missing)
    if count == total:
        return "all"
    most = math.ceil(_MOSTLY * count)
    lengths = rows[most - 1 :] - rows[: count - most + 1] + 1
    begin = int(np.argmin(lengths))
    end = begin + most
    spacing = int(lengths[begin]) / most
    while begin and rows[begin] - rows[begin - 1] <= 2 * spacing:
        begin -= 1
    while end < count and rows[end] - rows[end - 1] <= 2 * spacing:
        end += 1
    first, last = int(rows[begin]), int(rows[end - 1])
    if last - first + 1 > max(total / 2, end - begin):
        return "scattered"
    if first < spacing:
        return "start"
    if total - 1 - last < spacing:
        return "end"
    return "middle" if count > 1 else "scattered"
