"""Checks of a trace: missing events, lost records, and clocks that contradict each other."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np
import pandas as pd
from msgspec import to_builtins

from steptrace import format as fmt
from steptrace import intervals
from steptrace.analysis.common.activity import left_over
from steptrace.analysis.common.division import gpu_window
from steptrace.analysis.common.kernel_names import short_name
from steptrace.analysis.common.registry import part, table
from steptrace.analysis.syncs import were_recorded
from steptrace.documents.quality import LostRecords, Place, Quality, QualityCheck, StepSource
from steptrace.documents.table import frame_of, rows
from steptrace.intervals import Ints
from steptrace.trace.columns import ended_before, map_names, start_end
from steptrace.trace.model import Trace, launched_at, once
from steptrace.trace.names import device_module, host_collective, is_known_runtime, launch_kind

#: Below this share of GPU work with a known launch, figures that follow launches are doubtful.
LAUNCH_COVERAGE = 0.95

#: From this share of activities or operators that are wrong a check warns.
WRONG_SHARE = 0.01

#: Kineto aligns the clocks of host and GPU to about a microsecond; old traces hold whole microseconds.
CLOCK_TOLERANCE_NS = 2_000

#: What to do where a check fails, or what the figures then are.
_REMEDIES = {
    "GPU work linked to its launch": "call {module}.synchronize() before the profiler starts, or record fewer steps",
    "GPU work after its launch": "figures that depend on the order of host and GPU work are doubtful",
    "ends before later work of the stream": "each was cut at the next start of its stream",
    "one activity of a stream at a time": "figures that depend on the order of GPU work are doubtful",
    "operators within the steps": "operators, labels, functions and collectives per step include those outside",
    "steps with GPU work": "means per step include them; a step() call after the last step begins such a one",
}

#: What to do where records of launched work are missing, by place.
_WHERE_LOST: Final[Mapping[Place, str]] = {
    "all": "the profiler kept no record of the GPU: profile again in a fresh process, with warm-up steps "
    "(`torch.profiler.schedule(warmup=...)`) and without another profiler (Nsight, DCGM, rocprof) on the same GPU",
    "start": "let the profiler warm up for more steps (`torch.profiler.schedule(warmup=...)`), or profile earlier in "
    "the process: the loss grows with its age",
    "end": "call {module}.synchronize() before the profiler stops, or record fewer steps",
    "middle": "the profiler's buffers overran: record fewer steps, or without stacks and shapes",
    "scattered": "the profiler's buffers overran: record fewer steps, or without stacks and shapes",
}
_GRAPHS_LOST: Final = (
    "start a profiler once before the graphs are captured (`torch.profiler._utils._init_for_cuda_graphs`, on NVIDIA), "
    "or profile without graphs"
)
_LOST_CHECKS: Final = {"kernel": "launches with their GPU work", "graph": "graph launches with their GPU work"}


@table("quality_checks", QualityCheck)
@once
def quality_checks(trace: Trace) -> pd.DataFrame:
    """Every check of a trace with its result (table `quality_checks`); those of GPU work only if there is any."""
    checks = [_steps_marked(trace), _gpu_work(trace), *_lost(trace)]
    if len(trace.kernels) or len(trace.launches):
        checks.append(_runtime(trace))
    if len(trace.kernels):
        checks += [_linked(trace), _clocks(trace), _ends(trace), _overlaps(trace), *_communication(trace)]
    if trace.devices:
        checks.append(_devices(trace))
    if len(trace.steps):
        checks += [_numbering(trace), _follow(trace), _operators_within(trace)]
        if len(trace.kernels):
            checks.append(_steps_with_work(trace))
    return frame_of(QualityCheck, [to_builtins(check) for check in checks])


@part("quality")
def quality(trace: Trace) -> Quality:
    """The number of steps, the share of GPU work with a known launch, every check, and the warnings of failed ones.

    A note of the reader (events with impossible times, categories not read) is a warning too.
    """
    checks = quality_checks(trace)
    failed = checks.loc[checks["warns"].to_numpy(dtype=bool), ["says", "check"]].itertuples(index=False)
    records = trace.meta.records
    remedies = _REMEDIES | {_LOST_CHECKS[lost.launch]: _remedy(lost) for lost in records.lost}
    module = device_module(trace.meta.runtimes)
    remedies = {check: remedy.replace("{module}", module) for check, remedy in remedies.items()}
    return Quality(
        steps=len(trace.steps),
        launch_coverage=float(trace.kernels["launch"].notna().mean()) if len(trace.kernels) else None,
        warnings=(*trace.meta.notes, *(f"{says}; {remedies[c]}" if c in remedies else says for says, c in failed)),
        checks=rows(checks, QualityCheck),
        steps_from=trace.meta.steps_from,
        lost=records.lost,
        left_out=records.left_out,
        cut=records.cut,
        gpu_measured=None if not len(trace.kernels) and not records.lost else bool(trace.devices),
    )


def _part(count: int, of: int) -> str:
    return f"{fmt.count(count)} of {fmt.count(of)}"


def _steps_marked(trace: Trace) -> QualityCheck:
    steps, source = len(trace.steps), trace.meta.steps_from
    says = fmt.plural(steps, "step")
    if source is None:
        says = "no step label (ProfilerStep#N): figures cover the whole trace, per-step figures are missing"
    elif source != "profiler":
        says = f"no step label (ProfilerStep#N): {says} from {_STEP_SOURCES[source]}"
    return QualityCheck("steps marked", int(source != "profiler"), 1, source != "profiler", says)


def _gpu_work(trace: Trace) -> QualityCheck:
    count = len(trace.kernels)
    says = {
        0: "no GPU activity: GPU figures were not measured",
        1: "one GPU activity only: gaps were not measured",
    }.get(count, f"{fmt.count(count)} GPU activities")
    return QualityCheck("GPU work recorded", int(count < 2), 1, count < 2, says)


def _runtime(trace: Trace) -> QualityCheck:
    """Whether it is known which of the host's calls wait for the GPU."""
    runtimes = sorted(trace.meta.runtimes)
    unknown = [one for one in runtimes if not is_known_runtime(one)]
    says = f"calls of {', '.join(runtimes)}" if runtimes else "the calls into the GPU's runtime are missing"
    seen = were_recorded(trace)
    if not seen and unknown:
        says = f"calls of {', '.join(unknown)}: it is not known which of them wait for the GPU"
    return QualityCheck(
        "calls that wait for the GPU", int(not seen), 1, warns=not seen, says=says if seen else f"{says}; {_NO_SYNCS}"
    )


_NO_SYNCS: Final = "syncs were not measured"


def _communication(trace: Trace) -> list[QualityCheck]:
    """Whether a job of several ranks communicates; nothing for one of a single rank."""
    ranks = trace.meta.world_size or 1
    if ranks == 1:
        return []
    found = bool((trace.kernels["kind"] == "comm").any()) or bool(
        map_names(trace.labels["name"], lambda name: host_collective(name) is not None).any()
    )
    says = f"a job of {fmt.count(ranks)} ranks"
    if not found:
        says += " without communication: no kernel's name is known as a collective's, so its time counts as compute"
    return [QualityCheck("communication of the ranks", int(not found), 1, warns=not found, says=says)]


def _linked(trace: Trace) -> QualityCheck:
    own = trace.kernels["launch"][~left_over(trace)]
    missing, of = int(own.isna().sum()), len(own)
    says = f"{_part(missing, of)} GPU activities have no launch in the trace"
    return QualityCheck("GPU work linked to its launch", missing, of, 1 - missing / of < LAUNCH_COVERAGE, says)


def _lost(trace: Trace) -> list[QualityCheck]:
    """Launches without their work, of kernels and of graphs."""
    found = {lost.launch: lost for lost in trace.meta.records.lost}
    kinds = Counter(trace.launches["name"].map(launch_kind).dropna()) if len(trace.launches) else Counter[str]()
    checks = []
    for launch, check in _LOST_CHECKS.items():
        if (lost := found.get(launch)) is not None:
            checks.append(QualityCheck(check, lost.lost, lost.of, warns=True, says=_lost_says(trace, lost)))
        elif kinds[launch]:
            checks.append(QualityCheck(check, 0, kinds[launch], warns=False, says="all have their GPU activity"))
    return checks


#: A place as a part of the sentence on lost records.
_PLACES: Final[Mapping[Place, str]] = {
    "all": "all of the GPU's records are missing",
    "start": "records at the start are missing",
    "end": "records at the end are missing",
    "middle": "records in one stretch of the trace are missing",
    "scattered": "records throughout the trace are missing",
}
_MOST_NAMED: Final = 5
#: Where steps are from, if not from the profiler.
_STEP_SOURCES: Final[Mapping[StepSource, str]] = {
    "optimizer": "the ends of optimizer steps (Optimizer.step#)",
    "loader": "the waits for the loader (enumerate(DataLoader)#)",
}


def _lost_says(trace: Trace, lost: LostRecords) -> str:
    records = trace.meta.records
    says = (
        f"{_part(lost.lost, lost.of)} {lost.launch} launches have no GPU activity in the trace: {_PLACES[lost.place]}"
    )
    if records.left_out:
        named = [str(step.index) for step in records.left_out[:_MOST_NAMED]]
        more = ", ..." if len(records.left_out) > _MOST_NAMED else ""
        says += f"; left out: {fmt.plural(len(records.left_out), 'step')} ({', '.join(named)}{more})"
    return says if records.whole else f"{says}, so the GPU's figures were not measured"


def _remedy(lost: LostRecords) -> str:
    if lost.launch == "graph" and lost.place not in ("start", "end"):
        return _GRAPHS_LOST
    return _WHERE_LOST[lost.place]


def _ends(trace: Trace) -> QualityCheck:
    """Ends that ran over later launches of their stream, which the reader has cut."""
    cut, of = trace.meta.records.cut, len(trace.kernels)
    named = [
        f"{short_name(one.name)} on stream {one.stream} (recorded {fmt.duration(one.recorded_ns)}, "
        f"kept {fmt.duration(one.kept_ns)})"
        for one in cut[:_MOST_NAMED]
    ]
    names = ", ".join([*named, *(["..."] if len(cut) > _MOST_NAMED else [])])
    says = f"{_part(len(cut), of)} GPU activities end long after later ones of their stream began: {names}"
    return QualityCheck("ends before later work of the stream", len(cut), of, warns=len(cut) > 0, says=says)


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
    return QualityCheck("one activity of a stream at a time", count, of, count > WRONG_SHARE * of, says)


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
    first, last = gpu_window(trace) if trace.devices else trace.steps_span
    lengths, window = int((end - start).sum()), last - first
    twice = lengths - intervals.measure(intervals.union(intervals.spans(start, end)))
    says = (
        f"{early} of {len(start)} steps begin while GPU work of an earlier one is still to finish: their spans add up "
        f"to {fmt.duration(lengths)}, {fmt.duration(twice)} of it counted twice; all take {fmt.duration(window)}, "
        f"{fmt.duration(window / len(start))} a step"
    )
    return QualityCheck("steps one after the other", early, len(start), warns=False, says=says if early else "they do")


def _operators_within(trace: Trace) -> QualityCheck:
    outside, of = int(trace.ops["step"].isna().sum()), len(trace.ops)
    start = trace.ops["ts"].to_numpy()
    # A step left out is a step, too.
    for step in trace.meta.records.left_out:
        outside -= int(((start >= step.start_ns) & (start < step.start_ns + step.dur_ns)).sum())
    says = f"{_part(outside, of)} operators are called outside the steps"
    return QualityCheck("operators within the steps", outside, of, outside > WRONG_SHARE * of, says)


def _steps_with_work(trace: Trace) -> QualityCheck:
    steps = np.arange(len(trace.steps))
    idle = len(np.setdiff1d(steps, trace.kernels["step"].dropna().astype("int64")))
    says = f"{idle} of {len(steps)} steps launched no GPU work"
    return QualityCheck("steps with GPU work", idle, len(steps), idle > 0, says)
