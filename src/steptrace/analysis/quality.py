"""Checks of a trace: missing events, lost records, and clocks that contradict each other."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pandas as pd
from msgspec.structs import replace

from steptrace import intervals
from steptrace.analysis.common.activity import launches_known, left_over, syncs_known
from steptrace.analysis.common.division import gpu_window
from steptrace.analysis.common.kernel_names import short_name
from steptrace.analysis.common.registry import part, table
from steptrace.documents.quality import CheckCode, CheckRow, CutEnd, Quality, QualityCheck
from steptrace.documents.table import frame_of, names_of
from steptrace.intervals import Ints
from steptrace.trace.columns import ended_before, map_names, row_numbers, start_end
from steptrace.trace.model import Trace, launched_at, once
from steptrace.trace.names import (
    device_module,
    host_collective,
    is_async_copy,
    is_known_runtime,
    is_sync_copy,
    launch_kind,
)
from steptrace.trace.records import LAUNCH_COVERAGE, LOST_SHARE, captured
from steptrace.words import quality as words
from steptrace.words.notes import trace_warnings

#: From this share of activities or operators that are wrong a check warns.
WRONG_SHARE = 0.01

#: Kineto aligns the clocks of host and GPU to about a microsecond; old traces hold whole microseconds.
CLOCK_TOLERANCE_NS = 2_000

_LOST_CHECKS: Final[Mapping[str, CheckCode]] = {
    "kernel": "kernel_launches_with_work",
    "graph": "graph_launches_with_work",
    "copy": "copies_with_work",
}
#: Activities with a cut end that a check names.
_MOST_NAMED: Final = 5


def _check(code: CheckCode, wrong: int, total: int, *, warns: bool, **figures: Any) -> QualityCheck:
    text = words.result(code, wrong=wrong, total=total, figures=figures)
    return QualityCheck(code, wrong, total, warns, text, figures=figures)


@once
def checks_of(trace: Trace) -> tuple[QualityCheck, ...]:
    """Every check of a trace with its result; those of GPU work only if there is any."""
    checks = [_steps_marked(trace), _gpu_work(trace), *_lost(trace)]
    if len(trace.kernels) or len(trace.launches) or trace.meta.runtimes:
        checks.append(_runtime(trace))
    if len(trace.kernels):
        checks += [
            *_copies(trace),
            _linked(trace),
            *_with_operator(trace),
            _clocks(trace),
            _starts(trace),
            _ends(trace),
            _overlaps(trace),
            *_communication(trace),
        ]
    if trace.devices:
        checks.append(_devices(trace))
    if len(trace.steps):
        checks += [_numbering(trace), _follow(trace), _operators_within(trace)]
        if len(trace.kernels) or trace.meta.records.empty:
            checks.append(_steps_with_work(trace))
    return tuple(checks)


@table("quality_checks", CheckRow)
def quality_checks(trace: Trace) -> pd.DataFrame:
    """Every check of a trace with its result (table `quality_checks`)."""
    columns = names_of(CheckRow)
    return frame_of(CheckRow, [{name: getattr(check, name) for name in columns} for check in checks_of(trace)])


@part("quality")
def quality(trace: Trace) -> Quality:
    """The number of steps, the share of GPU work with a known launch, every check, and the warnings of failed ones.

    A note of the reader (events with impossible times, categories not read) is a warning too.
    """
    records = trace.meta.records
    of_trace = Quality(
        steps=len(trace.steps),
        launch_coverage=float(trace.kernels["launch"].notna().mean()) if len(trace.kernels) else None,
        warnings=(),
        checks=checks_of(trace),
        steps_from=trace.meta.steps_from,
        optimizer_steps=trace.meta.optimizer_steps,
        lost=records.lost,
        left_out=records.left_out,
        cut=records.cut,
        cut_starts=records.starts,
        notes=trace.meta.notes,
        gpu_measured=None if not len(trace.kernels) and not records.lost else bool(trace.devices),
    )
    return replace(of_trace, warnings=trace_warnings(of_trace))


def _steps_marked(trace: Trace) -> QualityCheck:
    steps = len(trace.steps)
    source = trace.meta.steps_from
    missing = source != "profiler"
    made_of = trace.meta.optimizer_steps
    together = 1 if made_of is None else made_of.count
    return _check("steps_marked", int(missing), 1, warns=missing, steps=steps, source=source, optimizer_steps=together)


def _gpu_work(trace: Trace) -> QualityCheck:
    count = len(trace.kernels)
    has_calls = len(trace.launches) > 0
    return _check("gpu_work", int(count < 2), 1, warns=count < 2, activities=count, has_calls=has_calls)


def _runtime(trace: Trace) -> QualityCheck:
    """Whether it is known which of the host's calls wait for the GPU."""
    runtimes = sorted(trace.meta.runtimes)
    unknown = [runtime for runtime in runtimes if not is_known_runtime(runtime)]
    seen = syncs_known(trace)
    of_trace = trace.meta.records
    doubtful = not seen or of_trace.lost_waits > 0 or of_trace.no_wait
    return _check(
        "waiting_calls",
        int(doubtful),
        1,
        warns=doubtful,
        runtimes=runtimes,
        unknown=unknown,
        missing=of_trace.lost_waits,
        must_wait=of_trace.must_wait,
        no_wait=of_trace.no_wait,
        left_out=[step.index for step in of_trace.left_out] if of_trace.lost_waits else [],
        measured=seen,
    )


def _communication(trace: Trace) -> list[QualityCheck]:
    """Whether a job of several ranks communicates; nothing for one of a single rank."""
    ranks = trace.meta.world_size or 1
    if ranks == 1:
        return []
    found = bool((trace.kernels["kind"] == "comm").any()) or bool(
        map_names(trace.labels["name"], lambda name: host_collective(name) is not None).any()
    )
    return [_check("communication", int(not found), 1, warns=not found, ranks=ranks)]


def _linked(trace: Trace) -> QualityCheck:
    launches = trace.kernels["launch"][~left_over(trace)]
    missing = int(launches.isna().sum())
    total = len(launches)
    records = trace.meta.records
    warns = 1 - missing / total < LAUNCH_COVERAGE or records.without_call > LOST_SHARE * total
    return _check(
        "linked_to_launch",
        missing,
        total,
        warns=warns,
        module=device_module(trace.meta.runtimes),
        lost=records.without_call,
        left_out=[step.index for step in records.left_out],
        measured=records.calls_whole,
        held_back=not launches_known(trace),
    )


def _with_operator(trace: Trace) -> list[QualityCheck]:
    """Whether the operators that launches name are in the trace; nothing where none names one."""
    records = trace.meta.records
    missing = records.without_operator
    total = records.named_operator
    warns = missing > LOST_SHARE * total
    return [_check("launches_with_operator", missing, total, warns=warns)] if total else []


def _lost(trace: Trace) -> list[QualityCheck]:
    """Launches without their work, of kernels and of graphs."""
    records = trace.meta.records
    lost_of = {lost.launch: lost for lost in records.lost}
    kinds = Counter(trace.launches["name"].map(launch_kind).dropna()) if len(trace.launches) else Counter[str]()
    notes = trace.meta.notes
    impossible = sum(
        note.figures["events"] for note in notes if note.code == "impossible_events" and note.figures["kind"] == "gpu"
    )
    unread = sum(note.figures["events"] for note in notes if note.code == "events_not_read")
    checks = []
    for launch, code in _LOST_CHECKS.items():
        if (lost := lost_of.get(launch)) is not None:
            checks.append(
                _check(
                    code,
                    lost.lost,
                    lost.of,
                    warns=True,
                    place=lost.place,
                    partly=lost.partly,
                    left_out=[step.index for step in records.left_out],
                    measured=records.whole,
                    impossible=impossible,
                    unread=unread,
                    module=device_module(trace.meta.runtimes),
                )
            )
        elif kinds[launch]:
            checks.append(_check(code, 0, kinds[launch], warns=False))
    return checks


def _copies(trace: Trace) -> list[QualityCheck]:
    """Copies without their work: empty ones leave no record, and so do those that a graph only captures.

    Where all of them have lost theirs, `_lost` says it.
    """
    launches = trace.launches
    if any(lost.launch == "copy" for lost in trace.meta.records.lost):
        return []
    copies = map_names(launches["name"], lambda name: is_async_copy(name) or is_sync_copy(name))
    name = launches["name"].cat
    copies &= ~captured(launches["ts"].to_numpy(), name.codes.to_numpy(), name.categories)
    recorded = np.zeros(len(launches), dtype=bool)
    recorded[(rows := row_numbers(trace.kernels["launch"]))[rows >= 0]] = True
    missing = int((copies & ~recorded).sum())
    total = int(copies.sum())
    return [_check("copies_with_work", missing, total, warns=missing > LOST_SHARE * total)] if total else []


def _starts(trace: Trace) -> QualityCheck:
    """Starts long before the call that launched the work, which the reader has cut."""
    cut = trace.meta.records.starts
    return _check("starts", len(cut), len(trace.kernels), warns=len(cut) > 0, cut=_named(cut))


def _ends(trace: Trace) -> QualityCheck:
    """Ends that ran over later launches of their stream, which the reader has cut."""
    cut = trace.meta.records.cut
    return _check("ends", len(cut), len(trace.kernels), warns=len(cut) > 0, cut=_named(cut))


def _named(cut: tuple[CutEnd, ...]) -> list[dict[str, Any]]:
    """The first of the activities that were cut, as a check records them."""
    return [
        {
            "name": short_name(records.name),
            "stream": records.stream,
            "recorded_ns": records.recorded_ns,
            "kept_ns": records.kept_ns,
        }
        for records in cut[:_MOST_NAMED]
    ]


def _clocks(trace: Trace) -> QualityCheck:
    linked = trace.kernels["launch"].notna().to_numpy()
    early: Ints = (launched_at(trace) - trace.kernels["ts"].to_numpy())[linked]
    wrong = early > CLOCK_TOLERANCE_NS
    count = int(wrong.sum())
    total = int(linked.sum())
    worst_ns = int(early.max()) if count else 0
    return _check("after_launch", count, total, warns=count > 0, worst_ns=worst_ns)


def _overlaps(trace: Trace) -> QualityCheck:
    """Work of one stream runs in sequence; overlaps mean wrong lengths or starts."""
    over = ended_before(trace.kernels, ["device", "stream"]) - trace.kernels["ts"].to_numpy()
    count = int((over > CLOCK_TOLERANCE_NS).sum())
    total = len(over)
    return _check("one_at_a_time", count, total, warns=count > WRONG_SHARE * total)


def _devices(trace: Trace) -> QualityCheck:
    devices = trace.devices
    several = len(devices) > 1
    return _check("one_gpu", len(devices) - 1, 1, warns=several, devices=len(devices), device=devices[0])


def _numbering(trace: Trace) -> QualityCheck:
    records = trace.meta.records
    marks = [(step.start_ns, step.index) for step in records.left_out]
    marks += zip(trace.steps["ts"].tolist(), trace.steps["index"].tolist(), strict=True)
    index = np.array([number for _, number in sorted(marks)], dtype=np.int64)
    jumps = int((np.diff(index) != 1).sum())
    numbers = [int(number) for number in index] if jumps else []
    left_out = [step.index for step in records.left_out] if records.gaps else []
    return _check("step_numbers", jumps, len(index), warns=jumps > 0, numbers=numbers, left_out=left_out)


def _follow(trace: Trace) -> QualityCheck:
    """Steps overlap if the host begins the next one before the GPU has finished this one."""
    start, end = start_end(trace.steps)
    early = int((start[1:] < np.maximum.accumulate(end)[:-1]).sum())
    first, last = gpu_window(trace) if trace.devices else trace.steps_span
    spans_ns = int((end - start).sum())
    twice_ns = int(spans_ns - intervals.measure(intervals.union(intervals.spans(start, end))))
    return _check(
        "steps_in_turn",
        early,
        len(start),
        warns=False,
        spans_ns=spans_ns,
        twice_ns=twice_ns,
        window_ns=int(last - first),
    )


def _operators_within(trace: Trace) -> QualityCheck:
    outside = int(trace.ops["step"].isna().sum())
    total = len(trace.ops)
    return _check("operators_within_steps", outside, total, warns=outside > WRONG_SHARE * total)


def _steps_with_work(trace: Trace) -> QualityCheck:
    records = trace.meta.records
    if records.empty:
        left_out = [step.index for step in records.left_out]
        total = len(trace.steps) + len(left_out)
        return _check("steps_with_work", records.empty, total, warns=True, left_out=left_out)
    steps = np.arange(len(trace.steps))
    launches = trace.launches
    lost = launches["step"][map_names(launches["name"], lambda name: launch_kind(name) is not None)]
    working = pd.concat([trace.kernels["step"].dropna(), lost.dropna()]).astype("int64")
    idle = len(np.setdiff1d(steps, working))
    return _check("steps_with_work", idle, len(steps), warns=idle > 0)
