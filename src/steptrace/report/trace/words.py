"""A trace under the title that its page gives it, and what page and terminal say of it in sentences.

Its result, what to know of it, what to do first.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from steptrace import format as fmt
from steptrace.documents.estimate import Estimate
from steptrace.documents.finding import PREDICTED_SYNCS, Finding
from steptrace.documents.overview import IDLE_CAUSES
from steptrace.documents.prediction import PredictedStep, predicted_in_words
from steptrace.documents.ranks import Ranks
from steptrace.documents.summary import Summary, TraceSummary
from steptrace.errors import RecordError
from steptrace.findings.estimated import step_words
from steptrace.findings.rule import ranked, window_of
from steptrace.findings.study import predicted_findings
from steptrace.limits import FEW_STEPS, NOISE_FLOOR, PROFILER_OVERHEAD, SLOW_PROFILE
from steptrace.report.page.findings import MOST_FINDINGS, recommended
from steptrace.report.page.markup import gain, sentence


@dataclass(frozen=True)
class TraceView:
    """A trace under the title that the page gives it."""

    title: str
    trace: TraceSummary

    @property
    def has_gpu(self) -> bool:
        """Whether the trace holds figures of a GPU."""
        return self.trace.gpu_measured

    @property
    def steps(self) -> int:
        """How many steps the trace marks."""
        return len(self.trace.steps)

    @property
    def step_ms(self) -> float | None:
        """The mean profiled step: the length of a step on this page, of which all its shares are; None without steps.

        It is the steps' time over their number. Their spans can be longer, see `lengths`.
        """
        overview = self.trace.overview
        return None if overview is None or overview.step_ns is None else overview.step_ns / fmt.NS_PER_MS

    @property
    def span_ms(self) -> float | None:
        """The mean span of the steps, from a step's start on the host to the end of its work; None without steps."""
        steps = self.trace.steps
        return statistics.mean(step.dur_ns / fmt.NS_PER_MS for step in steps) if steps else None

    @property
    def sync_count(self) -> int | None:
        """Syncs of the whole trace; None where there was nothing to wait for."""
        count = self.trace.syncs.count
        return count if count or self.trace.used_gpu else None


def trace_views(summary: Summary) -> tuple[TraceView, ...]:
    """All traces of a summary.json with their titles, in its order.

    Raises:
        RecordError: the summary holds no traces.
    """
    if not summary.traces:
        raise RecordError("summary holds no traces", expected="the content of a summary.json of `steptrace analyze`")
    titles = _titles(summary.traces)
    return tuple(TraceView(title, trace) for title, trace in zip(titles, summary.traces, strict=True))


def _titles(traces: Sequence[TraceSummary]) -> list[str]:
    """What each trace is called: its file's name, with as many folders as tell it from the others.

    Of several traces the rank, unless two say the same: then they are no ranks of one job.
    """
    paths = [Path(trace.path or "trace") for trace in traces]
    ranks = [trace.rank for trace in traces if trace.rank is not None]
    by_rank = len(traces) > 1 and len(set(ranks)) == len(ranks)
    longest = max(len(path.parts) for path in paths)
    names = next(
        (short for n in range(1, longest) if len(set(short := _last(paths, n))) == len(paths)), _last(paths, longest)
    )
    return [
        f"Rank {trace.rank}" if by_rank and trace.rank is not None else name
        for trace, name in zip(traces, names, strict=True)
    ]


def _last(paths: Sequence[Path], count: int) -> list[str]:
    return ["/".join(path.parts[-count:]) for path in paths]


#: A prediction and its estimates.
Predicted = tuple[PredictedStep, Sequence[Estimate]]
_SEVERAL: Final = 2
#: Counts of single steps in a sentence.
_MOST_COUNTS: Final = 6


def headline(view: TraceView, predicted: Predicted | None = None) -> str:
    """The result of a trace in a sentence: shares of the steps, or of the GPU's span without any.

    Without a GPU the step time, if unprofiled steps were timed, and what is predicted for a GPU.
    """
    trace = view.trace
    if not view.has_gpu:
        measured = "No GPU activity in this trace: its GPU figures were not measured."
        if trace.quality.lost:
            measured = f"GPU figures were not measured: {_lost(trace)}{_syncs_alone(view)}."
        if trace.unprofiled_step_ns is not None:
            measured = (
                f"A step takes {unprofiled(trace)} on this CPU (median){_others(trace)}; GPU figures were not measured."
            )
        return measured if predicted is None else f"{measured} {_in_a_sentence(*predicted)}"
    over = "the profiled step" if trace.steps else "the GPU's span"
    parts = {} if trace.overview is None else trace.overview.parts_ns
    idle = {cause: parts.get(f"idle_{cause}", 0.0) for cause in IDLE_CAUSES}
    busy = trace.gpu_busy_pct
    clauses = ["GPU busy: not measured" if busy is None else f"GPU busy {fmt.percent(busy)} of {over}"]
    if any(idle.values()):
        cause = max(idle, key=lambda name: idle[name])
        share = idle[cause] / sum(parts.values())
        clauses.append(f"idle {fmt.share(share)} {IDLE_CAUSES[cause]}{removable(trace, f'idle_{cause}', share)}")
    if trace.syncs.per_step is not None:
        clauses.append(f"{_syncs(trace, trace.syncs.per_step)}{_cheap(trace)}")
    elif view.sync_count is not None:
        clauses.append(f"{fmt.plural(view.sync_count, 'sync')} in the whole trace")
    return "; ".join(clauses) + "."


def _lost(trace: TraceSummary) -> str:
    """Which launches have lost their work."""
    return " and ".join(
        f"{fmt.count(one.lost)} of {fmt.count(one.of)} {one.launch} launches have no GPU activity in the trace"
        for one in trace.quality.lost
    )


def _syncs_alone(view: TraceView) -> str:
    """The syncs of a trace without figures of a GPU: calls of the host, which were recorded."""
    if view.trace.syncs.per_step is not None:
        return f"; {_syncs(view.trace, view.trace.syncs.per_step)}"
    return "" if view.sync_count is None else f"; {fmt.plural(view.sync_count, 'sync')} in the whole trace"


def _syncs(trace: TraceSummary, per_step: float) -> str:
    """Syncs per step; where profiled steps differ the mean over steps as often as each kind comes, and theirs."""
    counts, kinds = trace.syncs.by_step or (), trace.step_kinds
    of_kinds = [kind.syncs * kind.steps for kind in kinds if kind.syncs is not None]
    if len(set(counts)) < _SEVERAL:
        return f"{fmt.plural(per_step, 'sync')} per step"
    are_known = bool(kinds) and len(of_kinds) == len(kinds)
    mean = sum(of_kinds) / kinds[0].of if are_known else per_step
    each = f"{min(counts)} to {max(counts)}" if len(counts) > _MOST_COUNTS else fmt.enumeration([*map(str, counts)])
    return f"{fmt.plural(round(mean, 2), 'sync')} per step on average ({each} in the profiled steps)"


def _others(trace: TraceSummary) -> str:
    """The kind of steps that takes most of the time besides the usual one, as a clause."""
    usual = max(trace.step_kinds, key=lambda kind: kind.steps, default=None)
    other = max((kind for kind in trace.step_kinds if kind is not usual), key=lambda kind: kind.share, default=None)
    if other is None:
        return ""
    return (
        f", {other.steps} of {other.of} steps {fmt.duration_ns(other.median_ns)}: {fmt.share(other.share)} of the time"
    )


def headline_of_all(traces: Sequence[TraceSummary], ranks: Ranks | None) -> str:
    """The result of several traces: their GPUs' busy shares and syncs, least to greatest, and the straggler."""
    shares = sorted(trace.gpu_busy_pct for trace in traces if trace.gpu_busy_pct is not None)
    counts = sorted(trace.syncs.per_step for trace in traces if trace.syncs.per_step is not None)
    busy, syncs = _range([fmt.percent(share) for share in shares]), _range([fmt.count(count) for count in counts])
    text = f"GPU busy {busy}, syncs per step {syncs}."
    straggler = None if ranks is None else ranks.straggler
    return text if straggler is None else f"{text} Rank {straggler.rank} is the straggler."


def _range(ascending: Sequence[str]) -> str:
    ends = list(dict.fromkeys((ascending[0], ascending[-1]))) if ascending else []
    return " to ".join(ends) or fmt.NOT_MEASURED


def _most_by_syncs(trace: TraceSummary) -> float | None:
    """The share of the step that all syncs cost at most; None if unknown."""
    window, ceiling_ns = window_of(trace), trace.syncs.ceiling_ns
    return None if ceiling_ns is None else window.share(window.per_step(ceiling_ns))


def _cheap(trace: TraceSummary) -> str:
    """That the syncs cost next to nothing, where that is so."""
    share = _most_by_syncs(trace)
    if not trace.syncs.count or share is None or share >= NOISE_FLOOR:
        return ""
    return f", which cost {fmt.share(share)} of the step at most"


def removable(trace: TraceSummary, cause: str, idle: float) -> str:
    """How much of the idle time after syncs goes with them, where that is less."""
    share = _most_by_syncs(trace) if cause == "idle_sync" else None
    return f" (of which the syncs cost at most {fmt.share(share)})" if share is not None and share < idle else ""


def _in_a_sentence(prediction: PredictedStep, estimates: Sequence[Estimate]) -> str:
    """Syncs and step time on a GPU, as predicted."""
    times = [f"{step_words(one)} on {one.gpu}" for one in estimates if one.step_ms is not None]
    return f"Predicted for a GPU: {', '.join([predicted_in_words(prediction), *times])}."


def caution(view: TraceView) -> list[str]:
    """What a reader must know of the record before any figure of it: its steps, its stacks, what it is a record of."""
    trace, count = view.trace, len(view.trace.steps)
    cautions = []
    if not count:
        cautions.append("The trace marks no steps: figures are of all of it")
    elif count < FEW_STEPS:
        cautions.append(
            "One step only; it may be untypical" if count == 1 else f"{count} steps only; they may be untypical"
        )
    if trace.program.stacks and trace.unprofiled_step_ns is None:
        cautions.append("Python stacks were recorded: they slow the host, so idle time is an upper bound")
    if (slower := _slower(trace)) is not None:
        times = f"A profiled step took {fmt.ratio(slower)} the time of an unprofiled one"
        most = "most of the time below is the profiler's" if slower >= SLOW_PROFILE else "part of it is the profiler's"
        cautions.append(f"{times}: {most}")
    if trace.training is False:
        cautions.append("Neither a backward pass nor an optimizer step is in the trace: probably inference")
    return [f"{text}." for text in cautions]


def lengths(view: TraceView) -> list[str]:
    """A sentence for each other length of a step on the page, which says how it fits the profiled step's."""
    trace, step_ms, span_ms = view.trace, view.step_ms, view.span_ms
    sentences = []
    if step_ms is None:
        return []
    if trace.unprofiled_step_ns is not None and (slower := window_of(trace).slower) is not None:
        usual = f", of the usual ones {fmt.duration_ns(trace.step_kinds[0].median_ns)}" if trace.step_kinds else ""
        mean = f", their mean {fmt.duration_ns(trace.unprofiled_mean_ns)}" if trace.step_kinds else ""
        sentences.append(
            f"Without the profiler the median step takes {unprofiled(trace)}{usual}{mean}; a profiled step takes "
            f"{fmt.ratio(slower)} the time of an unprofiled one{' of its kind' if trace.step_kinds else ''}."
        )
    if span_ms is not None and abs(span_ms - step_ms) > NOISE_FLOOR * step_ms:
        sentences.append(
            f"A profiled step takes {fmt.duration_ms(step_ms)}. From its start on the host to the end of its GPU work "
            f"it spans {fmt.duration_ms(span_ms)}: meanwhile the GPU also works for earlier steps."
        )
    return sentences


def _slower(trace: TraceSummary) -> float | None:
    """How many times as long as an unprofiled step a profiled one took, where that is more than usual."""
    slower = window_of(trace).slower
    if slower is None or not trace.steps:
        return None
    return slower if slower > PROFILER_OVERHEAD else None


def nothing_to_advise(traces: Sequence[TraceView]) -> str:
    """Why nothing is advised: nothing was measured on a GPU, or no finding is worth it."""
    if not any(view.has_gpu for view in traces) and any(view.trace.quality.lost for view in traces):
        return "No findings from the host's times. Idle time and kernels were not measured."
    if not any(view.has_gpu for view in traces):
        return "No findings from the host's times. Syncs, idle time and kernels need a GPU and were not measured."
    if any(view.trace.findings for view in traces):
        return "Nothing to change in the program that would save 1 % of a step."
    return "No findings."


def first_of_one(view: TraceView, predicted: Predicted | None = None) -> list[Finding]:
    """What to do first on one trace; without a GPU predicted syncs lead."""
    syncs: list[Finding] = []
    if predicted is not None and not view.has_gpu:
        sites = sorted(predicted[0].sites, key=lambda site: -site.count_per_step)
        syncs = list(predicted_findings(site.site for site in sites))
    return [*syncs, *recommended(view.trace.findings)][:MOST_FINDINGS]


def first_of_all(traces: Sequence[TraceView], together: Sequence[Finding]) -> dict[str, Any]:
    """What to do first on several traces: each rule once, where it costs most, and whose it is."""
    every = [*together, *(replace(item, variant=view.title) for view in traces for item in view.trace.findings)]
    chosen = recommended(ranked(every))
    places = {view.title: f"trace-{i}-findings" for i, view in enumerate(traces)}
    anchor = places.get(chosen[0].variant, "findings") if chosen and chosen[0].variant else "findings"
    return {"items": chosen, "more": len(every) - len(chosen), "anchor": anchor}


def in_words(summary: Summary, predicted: Predicted | None = None) -> str:
    """The page in a few lines of plain text: the headline of one trace, the first finding of one or all, cautions."""
    traces = trace_views(summary)
    together = () if summary.ranks is None else summary.ranks.findings
    items = first_of_one(traces[0], predicted) if len(traces) == 1 else first_of_all(traces, together)["items"]
    of_all = headline_of_all(summary.traces, summary.ranks)
    lines = [headline(traces[0], predicted) if len(traces) == 1 else f"{len(traces)} traces: {of_all}"]
    cautions = caution(traces[0]) if len(traces) == 1 else []
    if not items:
        return "\n".join([*lines, nothing_to_advise(traces), *cautions])
    first = items[0]
    if traces[0].trace.unprofiled_step_ns is not None and traces[0].trace.steps and _is_of_profile(traces[0], first):
        profiled = fmt.duration_ms(traces[0].step_ms)
        lines.append(f"Of profiled steps ({profiled} each, unprofiled {unprofiled(traces[0].trace)}):")
    whose = f"{first.variant}: " if first.variant else ""
    lines.append(f"First: {whose}{first.claim}")
    saves = f"{sentence(gain(first))}." if gain(first) else ""
    return "\n".join([*lines, *(f"  {text}" for text in (saves, first.advice) if text), *cautions])


def _is_of_profile(view: TraceView, item: Finding) -> bool:
    """Whether a finding's figures are of profiled steps."""
    of_unprofiled = item.rule == "input_bound" and view.trace.input.unprofiled_wait_ns is not None
    return item.rule != PREDICTED_SYNCS and not of_unprofiled


def unprofiled(trace: TraceSummary) -> str:
    """The step time before the profiler was on: the only claim about speed."""
    return fmt.duration_ns(trace.unprofiled_step_ns)
