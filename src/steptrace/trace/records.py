"""Missing and wrong records of a GPU: launches whose work the trace lacks, and ends that cannot be right.

The profiler can lose records silently: at the start or the end of a recording, where its buffers overran, of graphs
that were captured before it was started, or all of them. A launch of a kernel or of a graph always puts work on a GPU,
so a launch without work shows the loss. GPU work without a known launch may belong to such a launch, so one launch for
each such activity is not counted as lost.

Steps with lost records are left out, so that no mean counts them as idle: the longest run of steps without a loss is
kept. If no step is left, or if records are missing in the middle of a trace without steps, the GPU was not measured.

A graph launch can also have lost a part of its work. That shows where another launch of the same graph has more: the
graph is known by its id, or, where the profiler writes none, as the one in the same place of each step.

Work of one stream runs in sequence. An end after the starts of several later launches of its stream is stale (AMD's
profiler writes such after a stall), and is cut at the next start. Few launches or none come after a stream's last work:
its end is stale if all of them lie within it, long before its end, or if the host has waited for it before. Without
any of these, it is stale if it ends after all other events and the work took a hundred times as long as any
other run of the same kernel. It is then cut to the longest of these. An end that was cut at the next start of a stream
that went on much later is cut to that length, too. Work of a kernel that ran once is compared with all the rest of the
recording. Work of collectives may wait that long.

A start long before the call that launched the work is as impossible: the work then began at that call, or at the end of
what its stream did before. If many starts are too early, the clocks of host and GPU disagree, and nothing is changed.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from steptrace.documents.quality import CutEnd, LeftOutStep, LostRecords, Place
from steptrace.intervals import Ints
from steptrace.trace import names as naming
from steptrace.trace.columns import Columns, Mask, by_name, in_order, row_with
from steptrace.trace.decode import MISSING

#: Above this share of launches without their work a step's GPU figures are not of all its work.
LOST_SHARE: Final = 0.01
#: The loss is said to be at one place if the place has this share of the lost launches.
_MOSTLY: Final = 0.9
#: An end is stale if this number of later launches of the stream start before it. Launches that overlap by design
#: (programmatic dependent launch) overlap with the next one only.
STALE_OVER: Final = 3
#: Where a step has so many events, one without any has lost them. Judged.
_FEWEST_EVENTS: Final = 10
#: A loss leaves at most so many runs of steps without events. Judged.
_MOST_RUNS: Final = 2
#: A time without events between two steps is a gap if it is so many times as long as the median time between two.
_GAP_TIMES: Final = 10
#: Above this share of stale ends a stream's number stands for several streams, and none is cut.
_MOST_STALE: Final = 0.1
#: Above this share of ends after the host's wait for them, or of starts before their launch, the clocks disagree.
_MOST_WAITED: Final = 0.5
#: From so many launches of a graph their usual work is known.
_FEWEST_GRAPHS: Final = 3
#: Below this share of GPU work with a known launch, what follows from launches is not known.
LAUNCH_COVERAGE: Final = 0.95
#: Overlap that the resolution of old traces explains.
_TOLERANCE_NS: Final = 2_000
#: By how much the end of a stream's last work has to be too late: more than clocks of host and GPU differ by, and more
#: than launches overlap by design.
_LONG_NS: Final = 1_000_000
#: So many times as long as another run of a kernel with the same grid (of a copy, with as many bytes) a stream's last
#: work has to be. In the 16 shared traces of real GPUs the ratio is at most 11.
_TIMES_LONGER: Final = 100


class Records(NamedTuple):
    """Missing and corrected records.

    `without_call` is the number of the GPU's activities whose call is missing, `gaps` that of the places between steps
    where others are missing, `empty` that of the steps without any event. `whole` says whether the GPU's figures
    can be computed, `calls_whole` whether those of the host's calls can.
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


def without_call(
    calls: Columns, gpu: Columns, launch: Ints, call_step: Ints, gpu_step: Ints, steps: int
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
    lost: Mask = begun & (gpu["correlation"] > oldest)
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


def gaps_before(steps: pd.DataFrame, events: Sequence[Columns]) -> Mask:
    """A mask of the steps before which others, or records, are missing: two windows of a profiler in one file.

    The time in between is in no step, and need not have been recorded. Where the steps' numbers jump, it is half a step
    or more. Where they go on, it is at least a step, ten times as long as other times between steps, and no event
    begins in it or goes on through it.

    Args:
        steps: the steps, in order of time.
        events: the events of the host and of the GPU.
    """
    index, start = steps["index"].to_numpy(), steps["ts"].to_numpy()
    length = steps["host_dur"].to_numpy()
    gap = np.zeros(len(steps), dtype=bool)
    if len(steps) > 1:
        ended = np.maximum.accumulate(start + length)[:-1]
        between = start[1:] - ended
        gap[1:] = (np.diff(index) != 1) & (2 * between > np.median(length))
        is_long = (between > np.median(length)) & (between > _GAP_TIMES * np.median(between))
        rows = np.flatnonzero(is_long)
        gap[rows + 1] |= ~_has_events(ended[rows], start[rows + 1], events)
    return gap


def _has_events(start: Ints, end: Ints, events: Sequence[Columns], *, ends: bool = False) -> Mask:
    """Whether any event begins within each span, or goes on through all of it; with `ends` also if one ends in it.

    Work of a GPU that the host launched in a step ends after it, which says nothing of the time after the step.
    """
    found = np.zeros(len(start), dtype=bool)
    for columns in events if len(start) else ():
        order = np.argsort(columns["ts"], kind="stable")
        ts = columns["ts"][order]
        reach = np.append(np.maximum.accumulate(columns["end"][order]), np.iinfo(np.int64).min)
        before, until = np.searchsorted(ts, start, side="right"), np.searchsorted(ts, end, side="left")
        found |= (until > before) | (reach[before - 1] > (start if ends else end - 1))
    return found


def empty_steps(steps: pd.DataFrame, begun: Ints, events: Sequence[Columns]) -> Mask:
    """A mask of the steps in which no event begins, ends or goes on, where others have many.

    A short one is none: a `step()` call after the last step only begins it, and a loop that skips a batch ends it soon.
    Nor are they where they come here and there: then the program calls `step()` more often than it has steps.

    Args:
        steps: the steps, in order of time.
        begun: how many events begin in each.
        events: the events of the host, without the marks of steps, and of the GPU.
    """
    empty: Mask = begun == 0
    if not empty.any() or empty.all() or np.median(begun[~empty]) < _FEWEST_EVENTS:
        return np.zeros_like(empty)
    start, length = steps["ts"].to_numpy(), steps["host_dur"].to_numpy()
    end = start + length
    empty &= 2 * length > np.median(length[begun > 0])
    rows = np.flatnonzero(empty)
    empty[rows] = ~_has_events(start[rows], end[rows], events, ends=True)
    runs = np.count_nonzero(empty & ~np.append(False, empty[:-1]))
    return empty if runs <= _MOST_RUNS else np.zeros_like(empty)


def cut_off(complete: Mask, events: Ints) -> Mask:
    """A mask of the steps in which a loss of the steps beside them begins or ends.

    Such a step has fewer events than every complete step that is not beside an incomplete one.

    Args:
        complete: whether each step has its records.
        events: how many events each step has of the kind that is missing.
    """
    beside = complete & (np.append(False, ~complete[:-1]) | np.append(~complete[1:], False))
    others = events[complete & ~beside]
    return beside & (events < LAUNCH_COVERAGE * others.min()) if len(others) else np.zeros_like(complete)


def complete_steps(gaps: Mask, call_step: Ints, lost: Mask, launches: Mask, broken: Mask) -> tuple[slice, bool]:
    """The run of steps without lost records that has most steps with launches, and True; of several the first.

    A run has no gap. If there is no such step, it returns all steps and False.

    Args:
        gaps: whether there is a gap before each step (`gaps_before`).
        call_step: the step of each call, -1 outside.
        lost, launches: masks of the calls.
        broken: the steps that lack records for another reason.
    """
    count = len(gaps)
    inside = call_step >= 0
    of_step = np.bincount(call_step[inside & launches], minlength=count)
    lost_of_step = np.bincount(call_step[inside & lost], minlength=count)
    complete = (lost_of_step <= LOST_SHARE * of_step) & ~broken
    has_work = of_step > 0 if of_step.any() else np.ones(count, dtype=bool)
    with_work = np.concatenate([[0], np.cumsum(complete & has_work)])
    joined = complete[1:] & complete[:-1] & ~gaps[1:]
    first = np.flatnonzero(complete & ~np.append(False, joined))
    stop = np.flatnonzero(complete & ~np.append(joined, False)) + 1
    sizes = with_work[stop] - with_work[first]
    if not sizes.any():
        return slice(0, count), False
    longest = int(np.argmax(sizes))
    return slice(int(first[longest]), int(stop[longest])), True


def span_is_complete(ts: Ints, lost: Mask, launches: Mask) -> bool:
    """Whether hardly any launch between the first and the last one with work is lost, so that this span is measured."""
    order = np.flatnonzero(launches)
    order = order[np.argsort(ts[order], kind="stable")]
    kept = np.flatnonzero(~lost[order])
    if len(kept) == 0:
        return False
    within = lost[order][kept[0] : kept[-1] + 1]
    return bool(within.sum() <= LOST_SHARE * len(within))


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
    count, total = len(rows), len(missing)
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


def mend_early_starts(gpu: Columns, calls: Columns, names: pd.Index) -> tuple[Columns, tuple[CutEnd, ...], int]:
    """The activities with possible starts, which were changed, and how many were left out.

    An activity that began long before the call that launched it began at that call, or at the end of what its stream
    did before. One that also ended long before that call is left out.

    Args:
        gpu: the GPU's activities, in order of start.
        calls: the calls into the runtime.
        names: the text of each name's number.
    """
    launch = row_with(calls["correlation"], gpu["correlation"])
    linked = launch >= 0
    called = np.where(linked, calls["ts"][np.maximum(launch, 0)] if len(calls["ts"]) else 0, np.iinfo(np.int64).min)
    early = linked & (gpu["ts"] < called - _LONG_NS)
    if not early.any() or early.sum() > max(1, _MOST_STALE * linked.sum()):
        return gpu, (), 0
    gone = early & (gpu["end"] < called - _LONG_NS)
    rows = np.flatnonzero(linked & ~gone)
    rows = rows[np.lexsort((gpu["ts"][rows], called[rows], gpu["stream"][rows], gpu["device"][rows]))]
    start = np.where(early, called, gpu["ts"])
    before = np.full(len(start), np.iinfo(np.int64).min)
    follows = (gpu["stream"][rows][1:] == gpu["stream"][rows][:-1]) & (
        gpu["device"][rows][1:] == gpu["device"][rows][:-1]
    )
    before[rows[1:][follows]] = gpu["end"][rows[:-1][follows]]
    start[early] = np.minimum(np.maximum(start, before), gpu["end"])[early]
    cut = tuple(
        CutEnd(
            name=str(names[gpu["name"][at]]),
            device=int(gpu["device"][at]),
            stream=int(gpu["stream"][at]),
            recorded_ns=int(gpu["dur"][at]),
            kept_ns=int(gpu["end"][at] - start[at]),
        )
        for at in np.flatnonzero(early & ~gone)
    )
    mended = {**gpu, "ts": start, "dur": gpu["end"] - start}
    kept = np.flatnonzero(~gone)
    order = kept[np.argsort(start[kept], kind="stable")]
    return in_order(mended, order), cut, int(gone.sum())


def cut_stale_ends(
    gpu: Columns, calls: Columns, names: pd.Index, *, host: tuple[int, int] | None = None
) -> tuple[CutEnd, ...]:
    """Cut stale ends in `gpu` (in order of start), and say which they were.

    Args:
        gpu: the GPU's activities.
        calls: the calls into the runtime.
        names: the text of each name's number.
        host: the start of the first event of the host and the end of the last one, None without any.
    """
    recorded = gpu["dur"].copy()
    cut: dict[int, CutEnd] = {}
    key = np.column_stack([gpu["device"], gpu["stream"]])
    order = np.lexsort((gpu["ts"], gpu["stream"], gpu["device"]))
    bounds = np.flatnonzero((np.diff(key[order], axis=0) != 0).any(axis=1)) + 1

    def keep_until(at: int, until: int) -> None:
        gpu["end"][at] = until
        gpu["dur"][at] = until - gpu["ts"][at]
        cut[at] = CutEnd(
            name=str(names[gpu["name"][at]]),
            device=int(gpu["device"][at]),
            stream=int(gpu["stream"][at]),
            recorded_ns=int(recorded[at]),
            kept_ns=int(gpu["dur"][at]),
        )

    for rows in np.split(order, bounds):
        for row, until in _stale(gpu["ts"][rows], gpu["end"][rows], gpu["correlation"][rows]):
            keep_until(int(rows[row]), until)
    for at, until in _waited_for(gpu, calls, names):
        keep_until(at, until)
    if len(gpu["ts"]):
        last = order[np.append(bounds, len(order)) - 1]
        for at, until in _longer_than_others(gpu, np.fromiter(cut, dtype=np.int64), last, names, host):
            keep_until(at, until)
    return tuple(sorted(cut.values(), key=lambda lost: (lost.kept_ns - lost.recorded_ns, lost.name)))


def _longer_than_others(
    gpu: Columns, cut: Ints, last: Ints, names: pd.Index, host: tuple[int, int] | None
) -> Iterator[tuple[int, int]]:
    """Row and end of each activity that is stale, and took longer than any other run of its kernel.

    An activity that was cut is still too long if the next one of its stream came late. The last one of a stream is
    stale if it took far longer. One of a kernel that ran once is compared with all the rest of the recording.

    Args:
        gpu: the GPU's activities.
        cut: the rows that were cut.
        last: the row of the last one of each stream.
        names: the text of each name's number.
        host: the start of the first event of the host and the end of the last one, None without any.
    """
    last = last[~np.isin(last, cut)]
    rows = np.concatenate([cut, last])
    rows = rows[(gpu["dur"][rows] > _LONG_NS) & (gpu["collective"][rows] < 0)]
    rows = rows[~by_name(gpu["name"][rows], names, naming.is_collective_kernel)]
    if len(rows) == 0:
        return
    same = pd.DataFrame({"name": gpu["name"], "blocks": gpu["blocks"], "bytes": gpu["bytes"]})
    of_kernel = same.groupby(list(same.columns), dropna=False, sort=False).ngroup().to_numpy()
    others = np.ones(len(of_kernel), dtype=bool)
    others[rows] = False
    longest = np.zeros(int(of_kernel.max()) + 1, dtype=np.int64)
    np.maximum.at(longest, of_kernel[others], gpu["dur"][others])
    starts, ends = [], []
    if others.any():
        starts, ends = [int(gpu["ts"][others].min())], [int(gpu["end"][others].max())]
    if host is not None:
        starts, ends = [*starts, host[0]], [*ends, host[1]]
    rest, stop = (max(ends) - min(starts), max(ends)) if ends else (0, 0)
    was_cut = np.isin(rows, cut)
    for at, is_stale in zip(rows.tolist(), was_cut.tolist(), strict=True):
        other, start, length = int(longest[of_kernel[at]]), int(gpu["ts"][at]), int(gpu["dur"][at])
        # A last work that ends within the recording contradicts nothing: kernels of a fixed grid may take any time.
        beyond = int(gpu["end"][at]) > stop
        if other and (is_stale or beyond) and length > (1 if is_stale else _TIMES_LONGER) * other + _LONG_NS:
            yield at, start + other
        # A recording that is shorter than what counts as long says nothing about how long its only work took.
        elif not (other or is_stale) and rest > _LONG_NS and length > _TIMES_LONGER * rest and stop > start:
            yield at, stop


def _waited_for(gpu: Columns, calls: Columns, names: pd.Index) -> list[tuple[int, int]]:
    """Row of each activity whose recorded end is long after the host has waited for it, and the wait's end.

    A wait for the device covers all work that was launched before the wait began, on whichever thread. A trace does not
    say which GPU or which stream a call waits for. So this is asked where there is one GPU, and of waits for a stream
    where there is one stream.
    """
    if len(gpu["ts"]) == 0 or len(np.unique(gpu["device"])) > 1:
        return []
    scopes = {"device", "stream"} if len(np.unique(gpu["stream"])) == 1 else {"device"}
    waits = np.flatnonzero(by_name(calls["name"], names, lambda name: naming.wait_scope(name) in scopes))
    if len(waits) == 0:
        return []
    waits = waits[np.argsort(calls["ts"][waits], kind="stable")]
    launch = row_with(calls["correlation"], gpu["correlation"])
    launched = np.where(launch >= 0, calls["ts"][launch] + calls["dur"][launch], gpu["ts"])
    first = np.searchsorted(calls["ts"][waits], launched, side="left")
    is_waited = (launch >= 0) & (first < len(waits))
    until = np.zeros(len(first), dtype=np.int64)
    wait = waits[first[is_waited]]
    until[is_waited] = calls["ts"][wait] + calls["dur"][wait]
    late = is_waited & (gpu["end"] > until + _LONG_NS) & (until > gpu["ts"])
    if late.sum() > max(1, _MOST_WAITED * is_waited.sum()):
        return []
    next_start = _next_starts(gpu)
    return [(int(at), int(min(until[at], next_start[at]))) for at in np.flatnonzero(late)]


def _next_starts(gpu: Columns) -> Ints:
    """The next start on the stream of each activity, after its own; the largest int64 for a stream's last."""
    following = np.full(len(gpu["ts"]), np.iinfo(np.int64).max)
    order = np.lexsort((gpu["ts"], gpu["stream"], gpu["device"]))
    key = np.column_stack([gpu["device"], gpu["stream"]])[order]
    for rows in np.split(order, np.flatnonzero((np.diff(key, axis=0) != 0).any(axis=1)) + 1):
        start = gpu["ts"][rows]
        place = np.searchsorted(start, start, side="right")
        following[rows] = np.append(start, np.iinfo(np.int64).max)[place]
    return following


def _stale(start: Ints, end: Ints, correlation: Ints) -> list[tuple[int, int]]:
    """Row and next start of each stale end of one stream, whose activities come in order of start."""
    over = np.searchsorted(start, end - _TOLERANCE_NS, side="left") - np.arange(len(start)) - 1
    rows = np.flatnonzero(over >= STALE_OVER)
    # Branches of a graph, which have one launch, may run at once. They do on this stream if some activity overlaps one
    # or two of the next ones.
    serial = not np.count_nonzero((over > 0) & (over < STALE_OVER))
    rows = rows[over[rows] - _of_one_launch(correlation, rows, over[rows]) >= STALE_OVER]
    after = rows + 1 if serial else _next_launch(correlation)[rows]
    found = list(zip(rows.tolist(), start[after].tolist(), strict=True))
    if (last := _last_stale(start, end, correlation)) is not None and last[0] not in dict(found):
        found.append(last)
    # Starts at the very same time say nothing of the end.
    found = [(row, until) for row, until in found if until > start[row]]
    return found if len(found) <= max(1, _MOST_STALE * len(start)) else []


def _of_one_launch(correlation: Ints, rows: Ints, following: Ints) -> Ints:
    """How many of the activities that follow each row, as many as `following` says, have its launch."""
    count = len(correlation)
    order = np.argsort(correlation, kind="stable")
    launch = np.zeros(count, dtype=np.int64)
    launch[order[1:]] = np.cumsum(np.diff(correlation[order]) != 0)
    places = np.sort(launch * count + np.arange(count))
    here = launch[rows] * count + rows
    return np.searchsorted(places, here + following, side="right") - np.searchsorted(places, here, side="right")


def _next_launch(correlation: Ints) -> Ints:
    """For each activity the next one of another launch, or the last activity if there is no such one."""
    last = len(correlation) - 1
    changes = np.append(np.flatnonzero(np.diff(correlation)) + 1, last)
    return changes[np.minimum(np.searchsorted(changes, np.arange(last + 1), side="right"), len(changes) - 1)]


def _last_stale(start: Ints, end: Ints, correlation: Ints) -> tuple[int, int] | None:
    """Row and next start of a stale end over the last launches of a stream, which are too few for `STALE_OVER`."""
    for row in range(max(len(start) - STALE_OVER, 0), len(start) - 1):
        others = correlation[row + 1 :] != correlation[row]
        if others.all() and end[row] > end[row + 1 :].max() + _LONG_NS:
            return row, int(start[row + 1])
    return None
