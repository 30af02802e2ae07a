"""Checks of a trace: missing events, lost records, and clocks that contradict each other."""

import re

import numpy as np
import pandas as pd
from msgspec.structs import asdict
from numpy.typing import NDArray

from steptrace import format as fmt
from steptrace import intervals
from steptrace.analysis.common.division import left_over
from steptrace.documents.quality import Quality, QualityCheck
from steptrace.documents.table import frame_of, rows
from steptrace.intervals import Ints
from steptrace.trace.columns import ended_before, map_names, row_numbers, start_end
from steptrace.trace.model import Trace, launched_at, once

#: Below this share of GPU work with a known launch, figures that follow launches are doubtful.
LAUNCH_COVERAGE = 0.95

#: GPU records were lost from this share of launches without work, or from this many at the trace's end.
LOST_SHARE, LOST_AT_END = 0.01, 3

#: Kineto aligns the clocks of host and GPU to about a microsecond; old traces hold whole microseconds.
CLOCK_TOLERANCE_NS = 2_000

#: Calls that always put one kernel or set on a GPU. Empty copies and captured launches leave no record.
_LAUNCHES_WORK = re.compile(r"^(?:cuda|cu|hip)(?:Ext|Ext?Module|Module)?Launch(?:Cooperative)?Kernel(?:Ex|ExC)?\Z")
_CAPTURE = re.compile(r"^(?:cuda|cu|hip)StreamBeginCapture")


#: What to do where a check fails, or what the figures then are.
_REMEDIES = {
    "GPU work linked to its launch": "call torch.cuda.synchronize() before the profiler starts, or record fewer steps",
    "launches with their GPU work": "call torch.cuda.synchronize() before the profiler stops, or record fewer steps",
    "GPU work after its launch": "figures that depend on the order of host and GPU work are doubtful",
    "one activity of a stream at a time": "figures that depend on the order of GPU work are doubtful",
    "operators within the steps": "operators, labels, functions and collectives per step include those outside",
    "steps with GPU work": "means per step include them; a step() call after the last step begins such a one",
}


@once
def quality_checks(trace: Trace) -> pd.DataFrame:
    """Every check of a trace with its result (table `quality_checks`); those of GPU work only if there is any."""
    checks = [_steps_marked(trace), _gpu_work(trace)]
    if len(trace.kernels):
        checks += [_linked(trace), _lost(trace), _clocks(trace), _overlaps(trace), _devices(trace)]
    if len(trace.steps):
        checks += [_numbering(trace), _follow(trace), _operators_within(trace)]
        if len(trace.kernels):
            checks.append(_steps_with_work(trace))
    return frame_of(QualityCheck, [asdict(check) for check in checks])


def quality(trace: Trace) -> Quality:
    """The number of steps, the share of GPU work with a known launch, every check, and the warnings of failed ones.

    A note of the reader (events with impossible times, categories not read) is a warning too.
    """
    checks = quality_checks(trace)
    failed = checks.loc[checks["warns"].to_numpy(dtype=bool), ["says", "check"]].itertuples(index=False)
    return Quality(
        steps=len(trace.steps),
        launch_coverage=float(trace.kernels["launch"].notna().mean()) if len(trace.kernels) else None,
        warnings=(*trace.meta.notes, *(f"{says}; {_REMEDIES[c]}" if c in _REMEDIES else says for says, c in failed)),
        checks=rows(checks, QualityCheck),
    )


def _part(count: int, of: int) -> str:
    return f"{fmt.count(count)} of {fmt.count(of)}"


def _steps_marked(trace: Trace) -> QualityCheck:
    steps = len(trace.steps)
    says = "no step label (ProfilerStep#N): figures cover the whole trace, per-step figures are missing"
    return QualityCheck("steps marked", int(steps == 0), 1, steps == 0, fmt.plural(steps, "step") if steps else says)


def _gpu_work(trace: Trace) -> QualityCheck:
    count = len(trace.kernels)
    says = {
        0: "no GPU activity: GPU figures were not measured",
        1: "one GPU activity only: gaps were not measured",
    }.get(count, f"{fmt.count(count)} GPU activities")
    return QualityCheck("GPU work recorded", int(count < 2), 1, count < 2, says)


def _linked(trace: Trace) -> QualityCheck:
    own = trace.kernels["launch"][~left_over(trace)]
    missing, of = int(own.isna().sum()), len(own)
    says = f"{_part(missing, of)} GPU activities have no launch in the trace"
    return QualityCheck("GPU work linked to its launch", missing, of, 1 - missing / of < LAUNCH_COVERAGE, says)


def _lost(trace: Trace) -> QualityCheck:
    """Launches without their kernel: the profiler's buffers overran, or recording ended before the GPU did."""
    launches = _of_launches(trace)
    owns = np.zeros(len(trace.launches), dtype=bool)
    linked = row_numbers(trace.kernels["launch"])
    owns[linked[linked >= 0]] = True
    rows = np.flatnonzero(launches)
    order = rows[np.argsort(trace.launches["ts"].to_numpy()[rows], kind="stable")]
    lost = ~owns[order]
    at_end = len(lost) - int(np.flatnonzero(~lost)[-1]) - 1 if (~lost).any() else len(lost)
    count, of = int(lost.sum()), len(order)
    warns = count > LOST_SHARE * of or at_end >= LOST_AT_END
    last = f", the last {fmt.count(at_end)} launches among them: the GPU's record ends too early"
    tail = last if at_end >= LOST_AT_END else ""
    says = f"{_part(count, of)} kernel launches have no GPU activity in the trace{tail}"
    return QualityCheck("launches with their GPU work", count, of, warns, says)


def _of_launches(trace: Trace) -> NDArray[np.bool_]:
    names = trace.launches["name"]
    if map_names(names, _CAPTURE.match).any():
        return np.zeros(len(names), dtype=bool)  # captured launches do not run
    return map_names(names, _LAUNCHES_WORK.match)


def _clocks(trace: Trace) -> QualityCheck:
    linked = trace.kernels["launch"].notna().to_numpy()
    early: Ints = (launched_at(trace) - trace.kernels["ts"].to_numpy())[linked]
    wrong = early > CLOCK_TOLERANCE_NS
    count, of = int(wrong.sum()), int(linked.sum())
    worst = f", by up to {fmt.duration(int(early.max()))}" if count else ""
    says = f"{_part(count, of)} GPU activities start before the call that launched them{worst}: the clocks disagree"
    return QualityCheck("GPU work after its launch", count, of, count > 0, says)


def _overlaps(trace: Trace) -> QualityCheck:
    """Work of one stream runs in sequence; overlaps mean wrong lengths or starts."""
    over = ended_before(trace.kernels, ["device", "stream"]) - trace.kernels["ts"].to_numpy()
    count, of = int((over > CLOCK_TOLERANCE_NS).sum()), len(over)
    says = f"{_part(count, of)} GPU activities start while an earlier one of their stream still runs"
    return QualityCheck("one activity of a stream at a time", count, of, count > LOST_SHARE * of, says)


def _devices(trace: Trace) -> QualityCheck:
    devices = trace.devices
    says = f"GPU work on {len(devices)} devices: figures are of device {devices[0]}"
    return QualityCheck("one GPU", len(devices) - 1, 1, len(devices) > 1, says)


def _numbering(trace: Trace) -> QualityCheck:
    index = trace.steps["index"].to_numpy()
    jumps = int((np.diff(index) != 1).sum())
    says = f"steps are not numbered one after the other: {', '.join(map(str, index))}"
    return QualityCheck(
        "steps numbered without a gap", jumps, len(index), jumps > 0, says if jumps else fmt.plural(len(index), "step")
    )


def _follow(trace: Trace) -> QualityCheck:
    """Steps overlap if the host begins the next one before the GPU has finished this one."""
    start, end = start_end(trace.steps)
    early = int((start[1:] < np.maximum.accumulate(end)[:-1]).sum())
    lengths, window = int((end - start).sum()), int(end.max() - start.min())
    twice = lengths - intervals.measure(intervals.union(intervals.spans(start, end)))
    says = (
        f"{early} of {len(start)} steps begin while GPU work of an earlier one is still to finish: their lengths add "
        f"up to {fmt.duration(lengths)} in a window of {fmt.duration(window)}, {fmt.duration(twice)} of it counted "
        f"twice; the rate is the window over their number, {fmt.duration(window / len(start))} a step"
    )
    return QualityCheck("steps one after the other", early, len(start), warns=False, says=says if early else "they do")


def _operators_within(trace: Trace) -> QualityCheck:
    outside, of = int(trace.ops["step"].isna().sum()), len(trace.ops)
    says = f"{_part(outside, of)} operators are called outside the steps"
    return QualityCheck("operators within the steps", outside, of, outside > LOST_SHARE * of, says)


def _steps_with_work(trace: Trace) -> QualityCheck:
    steps = np.arange(len(trace.steps))
    idle = len(np.setdiff1d(steps, trace.kernels["step"].dropna().astype("int64")))
    says = f"{idle} of {len(steps)} steps launched no GPU work"
    return QualityCheck("steps with GPU work", idle, len(steps), idle > 0, says)
