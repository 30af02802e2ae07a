"""Which steps of a trace have complete records; the other steps are left out, so that no mean counts them as idle.

The longest run of steps without a loss is kept. If no step is left, or if records are missing in the middle of a trace
without steps, the GPU was not measured.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.documents.quality import LeftOutStep
from steptrace.intervals import Ints
from steptrace.trace.columns import Columns, Mask, in_order, take
from steptrace.trace.lost_calls import Waits, first_calls_lost, has_no_wait
from steptrace.trace.records import (
    LAUNCH_COVERAGE,
    LOST_SHARE,
    Records,
    copies_without_work,
    launching,
    lost_launches,
    lost_records,
    partly_lost,
    place_of,
    without_call,
)
from steptrace.trace.steps import step_of

#: A step without events has lost them if the other steps have at least this many. A judged number.
_FEWEST_EVENTS: Final = 10
#: The most runs of steps without events that a loss leaves. A judged number.
_MOST_RUNS: Final = 2
#: A time without events between two steps is a gap if it is this many times as long as the median time between two.
_GAP_TIMES: Final = 10


def recorded_steps(  # noqa: PLR0913 - the columns that it compares
    steps: pd.DataFrame,
    host: Sequence[Columns],
    calls: Columns,
    gpu: Columns,
    launch: Ints,
    names: pd.Index,
    waits: Waits,
    unfinished: Mask,
) -> tuple[pd.DataFrame, Records]:
    """The steps with complete records, and the records that are missing.

    Args:
        steps: the steps, in order of time.
        host: the labels that mark no steps, the operators, and the Python functions.
        calls: the calls into the runtime.
        gpu: the GPU's activities, in order of start.
        launch: the row of the call that launched each activity, -1 if unknown.
        names: the text of each name's number.
        waits: where calls that wait must be.
        unfinished: a mask of the steps that were still running when the recording ended.
    """
    copies = copies_without_work(calls, gpu, launch, names)
    launches = launching(calls, names) | copies
    call_step = step_of(calls["ts"], steps)
    partly = partly_lost(calls, gpu, launch, names, call_step)
    lost = lost_launches(calls, gpu, launch, names) | partly | copies
    gpu_step = step_of(gpu["ts"], steps)
    first_lost = first_calls_lost(host[1], calls, launch)
    alone, alone_step = without_call(calls, gpu, launch, call_step, gpu_step, len(steps), first_lost=first_lost)
    gaps = _gaps_before(steps, [*host, calls, gpu])
    events = np.sum([_by_step(columns["ts"], steps) for columns in (*host, calls, gpu)], axis=0)
    empty = _empty_steps(steps, events, [*host, calls, gpu])
    no_wait = has_no_wait(calls, names)
    if not any(found.any() for found in (lost, alone, gaps, empty, waits.lost, unfinished)):
        return steps, Records(must_wait=len(waits.ts), no_wait=no_wait)
    broken = empty | unfinished
    if empty.any():
        broken |= _cut_off(~empty, events)
    calls_whole = bool(alone.sum() <= LOST_SHARE * len(alone))
    if len(steps):
        if calls_whole and waits.uncounted.any():
            broken |= _without_waits(waits, steps, broken)
        losses = _Losses(lost, launches, alone, alone_step, gaps, broken)
        kept, whole, calls_whole = _kept_steps(steps, calls, call_step, losses, calls_whole=calls_whole)
    else:
        kept = slice(0, 0)
        whole = not lost.any() or (len(gpu["ts"]) > 0 and _span_is_complete(calls["ts"], lost, launches))
    left_out = pd.concat([steps.iloc[: kept.start], steps.iloc[kept.stop :]])
    steps_out = tuple(LeftOutStep(*map(int, row)) for row in left_out[["index", "ts", "host_dur"]].to_numpy())
    counts = ~_in_any(waits.ts, steps_out)
    return steps.iloc[kept].reset_index(drop=True), Records(
        lost=tuple(lost_records(calls, names, lost, launches, partly)),
        left_out=steps_out,
        without_call=int(alone.sum()),
        gaps=int(gaps.sum()),
        empty=int(empty.sum()),
        whole=whole and (len(gpu["ts"]) > 0 or not lost.any()),
        calls_whole=calls_whole,
        lost_waits=int(waits.lost.sum()),
        must_wait=len(waits.ts),
        uncounted=int(waits.uncounted.sum()),
        waits_whole=bool((waits.uncounted & counts).sum() <= LOST_SHARE * counts.sum()),
        no_wait=no_wait,
    )


class _Losses(NamedTuple):
    """What the profiler has lost in a trace with steps.

    Attributes:
        lost: a mask of the calls whose work, or a part of it, is missing.
        launches: a mask of the calls that put work on a GPU.
        alone: a mask of the GPU's activities whose call is missing.
        alone_step: the step of each such activity, -1 without one.
        gaps: a mask of the steps before which others are missing.
        broken: a mask of the steps that lack other records.
    """

    lost: Mask
    launches: Mask
    alone: Mask
    alone_step: Ints
    gaps: Mask
    broken: Mask


def _kept_steps(
    steps: pd.DataFrame, calls: Columns, call_step: Ints, losses: _Losses, *, calls_whole: bool
) -> tuple[slice, bool, bool]:
    """The steps to keep, whether the GPU's figures can be computed, and whether those of the host's calls can.

    Args:
        steps: the steps, in order of time; at least one.
        calls: the calls into the runtime.
        call_step: the step of each call, -1 outside.
        losses: what is missing.
        calls_whole: whether hardly any call is missing in the whole trace.
    """
    lost, launches, alone, alone_step, gaps, broken = losses
    # If calls are missing here and there, those that wait may be missing in any step.
    if not calls_whole and place_of(alone) != "scattered":
        in_steps = alone_step[alone]
        unlaunched = np.bincount(in_steps[in_steps >= 0], minlength=len(steps))
        launched = np.bincount(call_step[launches & (call_step >= 0)], minlength=len(steps))
        uncalled = broken | (unlaunched > LOST_SHARE * (launched + unlaunched))
        uncalled |= _cut_off(~uncalled, _by_step(calls["ts"], steps))
        kept, are_complete = _complete_steps(gaps, call_step, lost, launches, uncalled)
        if are_complete:
            return kept, True, True
    # The GPU's figures do not need the calls.
    kept, are_complete = _complete_steps(gaps, call_step, lost, launches, broken)
    return kept, are_complete or not lost.any(), calls_whole


def _without_waits(waits: Waits, steps: pd.DataFrame, broken: Mask) -> Mask:
    """A mask of the steps whose waits are missing; of none if the loss has no place, or if no step would be left.

    Steps before or after the loss have all of their waits.
    """
    unwaited = _by_step(waits.ts[waits.uncounted], steps) > 0
    if place_of(waits.uncounted) in ("all", "scattered") or (broken | unwaited).all():
        return np.zeros(len(steps), dtype=bool)
    return unwaited


def _by_step(times: Ints, steps: pd.DataFrame) -> Ints:
    """How many of these instants lie in each step."""
    return np.bincount(step_of(times, steps) + 1, minlength=len(steps) + 1)[1:]


def _gaps_before(steps: pd.DataFrame, events: Sequence[Columns]) -> Mask:
    """A mask of the steps before which others, or records, are missing: two windows of a profiler in one file.

    The time in between is in no step, and need not have been recorded. Where the steps' numbers jump, it is half a step
    or more. Where they go on, it is at least a step, ten times as long as other times between steps, and no event
    begins in it or goes on through it.

    Args:
        steps: the steps, in order of time.
        events: the events of the host and of the GPU.
    """
    index = steps["index"].to_numpy()
    start = steps["ts"].to_numpy()
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


def _empty_steps(steps: pd.DataFrame, begun: Ints, events: Sequence[Columns]) -> Mask:
    """A mask of the steps in which no event begins, ends or goes on, where others have many.

    A short step without events has lost none: a `step()` call after the last step only begins one, and a loop that
    skips a batch ends its step soon. Steps without events in many places have lost none either: their program calls
    `step()` more often than it has steps.

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


def _cut_off(complete: Mask, events: Ints) -> Mask:
    """A mask of the steps in which a loss of the steps beside them begins or ends.

    Such a step has fewer events than every complete step that is not beside an incomplete one.

    Args:
        complete: whether each step has its records.
        events: how many events each step has of the kind that is missing.
    """
    beside = complete & (np.append(False, ~complete[:-1]) | np.append(~complete[1:], False))
    undisturbed = events[complete & ~beside]
    return beside & (events < LAUNCH_COVERAGE * undisturbed.min()) if len(undisturbed) else np.zeros_like(complete)


def _complete_steps(gaps: Mask, call_step: Ints, lost: Mask, launches: Mask, broken: Mask) -> tuple[slice, bool]:
    """The run of steps without lost records that has most steps with launches, and True; of several the first.

    A run has no gap. If there is no such step, it returns all steps and False.

    Args:
        gaps: whether there is a gap before each step (`_gaps_before`).
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


def _span_is_complete(ts: Ints, lost: Mask, launches: Mask) -> bool:
    """Whether hardly any launch between the first and the last one with work is lost, so that this span is measured."""
    order = np.flatnonzero(launches)
    order = order[np.argsort(ts[order], kind="stable")]
    kept = np.flatnonzero(~lost[order])
    if len(kept) == 0:
        return False
    within = lost[order][kept[0] : kept[-1] + 1]
    return bool(within.sum() <= LOST_SHARE * len(within))


def work_of_kept_steps(
    gpu: Columns, calls: Columns, launch: Ints, left_out: Sequence[LeftOutStep], steps: pd.DataFrame
) -> Columns:
    """The GPU's work without that of steps that were left out.

    Work of an earlier step that still runs in the first kept one stays: it keeps the GPU busy there.
    """
    begun = np.where(launch >= 0, take(calls["ts"], launch), gpu["ts"])
    gone = _in_any(begun, left_out)
    first = int(steps["ts"].iloc[0])
    gone &= (begun > first) | (gpu["end"] <= first)
    return in_order(gpu, np.flatnonzero(~gone))


def outside_of(events: Columns, left_out: Sequence[LeftOutStep]) -> Columns:
    """The host's events without those that begin in a step that was left out."""
    return in_order(events, np.flatnonzero(~_in_any(events["ts"], left_out)))


def _in_any(times: Ints, left_out: Sequence[LeftOutStep]) -> Mask:
    """A mask of the instants that lie in a step that was left out."""
    starts = np.array([step.start_ns for step in left_out], dtype=np.int64)
    lengths = np.array([step.dur_ns for step in left_out], dtype=np.int64)
    return intervals.contains(intervals.union(intervals.spans(starts, starts + lengths)), times)
