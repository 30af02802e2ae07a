"""The facts that a page of traces and the terminal begin with; `words.headline` makes the sentences.

They are the result, the lengths of a step, what to know of the record, and why nothing is advised.
"""

import statistics
from collections.abc import Iterable, Sequence
from typing import Final

from steptrace.documents.headline import (
    Caution,
    Delays,
    Headline,
    HeadlineOfSeveral,
    NothingToAdvise,
    OtherSteps,
    Range,
    SpanLength,
    StepLengths,
    SyncFacts,
    UnprofiledLengths,
)
from steptrace.documents.overview import IDLE_CAUSES
from steptrace.documents.ranks import Ranks
from steptrace.documents.summary import TraceSummary
from steptrace.findings.reason import reason_of
from steptrace.findings.window import window_of
from steptrace.format import NS_PER_MS
from steptrace.limits import FEW_STEPS, NOISE_FLOOR, PROFILER_OVERHEAD, UNKNOWN_IDLE
from steptrace.stats import IQR_REFUSED

#: From this number of different step counts on, the counts are listed.
_SEVERAL: Final = 2
#: The end of the name of a call that waits for all work of a GPU: `cudaDeviceSynchronize`, `hipDeviceSynchronize`.
_EXPLICIT: Final = "DeviceSynchronize"


def headline_of(trace: TraceSummary) -> Headline:
    """The result of a trace: shares of its steps, or of the GPU's span if it marks none."""
    parts = {} if trace.overview is None else trace.overview.known_ns
    idle = {cause: parts.get(f"idle_{cause}", 0.0) for cause in IDLE_CAUSES}
    cause = max(idle, key=lambda name: idle[name]) if any(idle.values()) else None
    return Headline(
        gpu_measured=trace.gpu_measured,
        has_steps=bool(trace.steps),
        lost=trace.quality.lost,
        unprofiled_step_ns=trace.unprofiled_step_ns,
        other_steps=_other_steps(trace),
        busy_pct=trace.gpu_busy_pct,
        idle_cause=cause,
        idle_share=0.0 if cause is None else idle[cause] / sum(parts.values()),
        syncs=_syncs(trace),
        profiled_step_ms=profiled_step_ms(trace),
        unread_runtimes=tuple(
            runtime
            for check in trace.quality.checks
            if check.check == "waiting_calls" and check.warns
            for runtime in check.figures.get("unknown", ())
        ),
    )


def headline_of_several(traces: Sequence[TraceSummary], ranks: Ranks | None) -> HeadlineOfSeveral:
    """The result of several traces: the ranges of GPU busy and of syncs, and the straggler's delays."""
    return HeadlineOfSeveral(
        gpu_measured=any(trace.gpu_measured or trace.gpu_busy_pct is not None for trace in traces),
        profiled_ms=_range(profiled_step_ms(trace) for trace in traces),
        busy_pct=_range(trace.gpu_busy_pct for trace in traces),
        syncs_per_step=_range(trace.syncs.per_step for trace in traces),
        delays=_delays(traces[0], ranks),
    )


def _range(values: Iterable[float | None]) -> Range | None:
    measured = [value for value in values if value is not None]
    return Range(min(measured), max(measured)) if measured else None


def _delays(trace: TraceSummary, ranks: Ranks | None) -> Delays | None:
    """The delays of the straggler per step; over the whole trace if it marks no steps."""
    straggler = None if ranks is None else ranks.straggler
    if straggler is None:
        return None
    window = window_of(trace)
    ns = window.per_step(straggler.delay_ns)
    return Delays(rank=straggler.rank, ns=ns, step_share=window.share(ns) if window.steps else None)


def profiled_step_ms(trace: TraceSummary) -> float | None:
    """The mean profiled step in ms: the steps' time over their number; None without steps."""
    overview = trace.overview
    return None if overview is None or overview.step_ns is None else overview.step_ns / NS_PER_MS


def span_ms(trace: TraceSummary) -> float | None:
    """The mean span of the steps in ms, from a step's start on the host to the end of its work; None without steps."""
    return statistics.mean(step.dur_ns / NS_PER_MS for step in trace.steps) if trace.steps else None


def step_lengths_of(trace: TraceSummary) -> StepLengths:
    """The lengths of a step that stand on a page besides the profiled step's."""
    step_ms = profiled_step_ms(trace)
    if step_ms is None:
        return StepLengths(unprofiled=None, span=None)
    span = span_ms(trace)
    is_longer = span is not None and abs(span - step_ms) > NOISE_FLOOR * step_ms
    return StepLengths(
        unprofiled=_unprofiled_lengths(trace),
        span=SpanLength(step_ms=step_ms, span_ms=span) if span is not None and is_longer else None,
    )


def _unprofiled_lengths(trace: TraceSummary) -> UnprofiledLengths | None:
    slower = window_of(trace).slower
    if trace.unprofiled_step_ns is None or slower is None:
        return None
    has_kinds = bool(trace.step_kinds)
    return UnprofiledLengths(
        median_ns=trace.unprofiled_step_ns,
        usual_ns=trace.step_kinds[0].median_ns if has_kinds else None,
        mean_ns=trace.unprofiled_mean_ns if has_kinds else None,
        slower=slower,
    )


def why_nothing_is_advised(traces: Sequence[TraceSummary]) -> NothingToAdvise:
    """Why nothing is advised on traces without a finding to begin with."""
    if not any(trace.gpu_measured for trace in traces):
        return "gpu_work_lost" if any(trace.quality.lost for trace in traces) else "no_gpu"
    if any(trace.findings for trace in traces):
        return "nothing_worth_it"
    reasons = [reason_of(trace) for trace in traces]
    paced = all(reason is not None and reason.kind == "kernels" for reason in reasons)
    return "kernels_set_the_pace" if paced else "no_findings"


def _syncs(trace: TraceSummary) -> SyncFacts:
    """The syncs of a trace; if profiled steps differ, the mean is over steps as often as each kind comes."""
    count = trace.syncs.count
    per_step = trace.syncs.per_step
    counts = set(trace.syncs.by_step or ())
    kinds = trace.step_kinds
    by_kind = [kind.syncs * kind.steps for kind in kinds if kind.syncs is not None]
    differ = len(counts) >= _SEVERAL
    if differ and kinds and len(by_kind) == len(kinds):
        per_step = sum(by_kind) / kinds[0].of
    return SyncFacts(
        per_step=None if trace.syncs.per_step is None else per_step,
        in_steps=tuple(trace.syncs.by_step or ()) if differ else (),
        whole=count if count or trace.used_gpu else None,
        most_share=most_share_of_syncs(trace),
    )


def most_share_of_syncs(trace: TraceSummary) -> float | None:
    """The share of the step that all syncs cost at most; None if it is unknown."""
    window = window_of(trace)
    ceiling_ns = trace.syncs.ceiling_ns
    return None if ceiling_ns is None else window.share(window.per_step(ceiling_ns))


def _other_steps(trace: TraceSummary) -> OtherSteps | None:
    """The kind of steps that takes most of the time besides the usual one."""
    usual = max(trace.step_kinds, key=lambda kind: kind.steps, default=None)
    other = max((kind for kind in trace.step_kinds if kind is not usual), key=lambda kind: kind.share, default=None)
    return None if other is None else OtherSteps(other.steps, other.of, other.median_ns, other.share)


def cautions_of_all(traces: Sequence[TraceSummary]) -> list[Caution]:
    """What a reader must know of the records of all these traces alike."""
    first, *of_other_traces = map(cautions_of, traces)
    return [caution for caution in first if all(caution in cautions for cautions in of_other_traces)]


def cautions_of(trace: TraceSummary) -> list[Caution]:
    """The cautions about a record, for the reader of its figures: on its steps, its stacks, and the kind of program."""
    steps = len(trace.steps)
    cautions = list[Caution]()
    if not steps:
        cautions.append(Caution("no_steps"))
    elif steps < FEW_STEPS:
        cautions.append(Caution("few_steps", steps=steps))
    spread = trace.unprofiled_iqr_over_median
    if spread is not None and spread > IQR_REFUSED and not trace.step_kinds:
        cautions.append(Caution("uneven_steps", spread=spread))
    if trace.program.stacks and trace.unprofiled_step_ns is None:
        cautions.append(Caution("python_stacks"))
    slower = window_of(trace).slower
    if slower is not None and trace.steps and slower > PROFILER_OVERHEAD:
        cautions.append(Caution("slow_profile", slower=slower))
    if trace.training is False:
        cautions.append(Caution("probably_inference"))
    if (unknown := _unknown_idle(trace)) is not None:
        cautions.append(unknown)
    sites = trace.syncs.sites
    if sites and all((site.kind or "").endswith(_EXPLICIT) for site in sites):
        cautions.append(Caution("explicit_syncs"))
    return cautions


def _unknown_idle(trace: TraceSummary) -> Caution | None:
    """The caution about idle time without a known cause, with facts on its longest gaps; None if it is short."""
    parts = {} if trace.overview is None else trace.overview.known_ns
    idle = parts.get("idle_unknown", 0)
    if not idle or idle < UNKNOWN_IDLE * sum(parts.values()):
        return None
    if trace.overview is not None and None in trace.overview.parts_ns.values():
        # A critical path needs all that tells causes, so it lacks the same.
        return Caution("unknown_idle", idle=idle / sum(parts.values()), lacks=trace.absent.get("critical_path"))
    gaps = [gap for gap in trace.idle.longest if gap.cause == "unknown"]
    launched = sum(gap.dur for gap in gaps if gap.launched_after_ns is not None)
    return Caution("unknown_idle", idle=idle / sum(parts.values()), queued=2 * launched >= sum(gap.dur for gap in gaps))
