"""What a page of traces and the terminal begin with: the answer, why, what to do first, and what to read with care.

The facts come from `findings`, and the sentences from `words`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from steptrace import format as fmt
from steptrace.documents.estimate import Estimate
from steptrace.documents.finding import PREDICTED_SYNCS, Finding
from steptrace.documents.prediction import PredictedStep
from steptrace.documents.ranks import Ranks
from steptrace.documents.reason import Reason
from steptrace.documents.summary import Summary, TraceSummary
from steptrace.findings.headline import (
    cautions_of_all,
    headline_of,
    headline_of_several,
    most_share_of_syncs,
    why_nothing_is_advised,
)
from steptrace.findings.reason import reason_of
from steptrace.findings.recommended import MOST_RECOMMENDED, recommended
from steptrace.findings.rule import ranked
from steptrace.findings.rules.predicted_syncs import predicted_findings
from steptrace.report.trace.view import TraceView, title_of_several, trace_views
from steptrace.words.finding import gain_text, ranks_of_finding_text
from steptrace.words.headline import (
    caution_text,
    headline_of_several_text,
    headline_text,
    nothing_to_advise_text,
    removable_text,
)
from steptrace.words.lines import TextLine, as_text
from steptrace.words.prediction import predicted_for_gpu
from steptrace.words.reason import reason_text

#: A prediction and its estimates.
Predicted = tuple[PredictedStep, Sequence[Estimate]]


def headline(trace: TraceSummary, predicted: Predicted | None = None) -> str:
    """The result of a trace in a sentence; without a GPU also the prediction for one."""
    text = headline_text(headline_of(trace))
    return text if trace.gpu_measured or predicted is None else f"{text} {predicted_for_gpu(*predicted)}"


def headline_of_all(traces: Sequence[TraceSummary], ranks: Ranks | None) -> str:
    """The result of several traces in a sentence."""
    return headline_of_several_text(headline_of_several(traces, ranks))


def removable(trace: TraceSummary, part: str, idle_share: float) -> str:
    """How much of the idle time after syncs their removal saves, if that is not all of it; empty for other parts."""
    return removable_text(part.removeprefix("idle_"), idle_share, most_share_of_syncs(trace))


def cautions(traces: Sequence[TraceView]) -> list[str]:
    """What a reader must know of the records of all these traces before any figure; a sentence each."""
    return [caution_text(caution) for caution in cautions_of_all([view.trace for view in traces])]


def nothing_to_advise(traces: Sequence[TraceView]) -> str:
    """Why nothing is advised, in a sentence."""
    return nothing_to_advise_text(why_nothing_is_advised([view.trace for view in traces]))


def first_of_one(view: TraceView, predicted: Predicted | None = None) -> list[Finding]:
    """What to do first on one trace; without a GPU predicted syncs lead."""
    syncs: list[Finding] = []
    if predicted is not None and not view.has_gpu:
        sites = sorted(predicted[0].sites, key=lambda site: -site.count_per_step)
        syncs = list(predicted_findings(site.site for site in sites))
    return [*syncs, *recommended(view.trace.findings)][:MOST_RECOMMENDED]


@dataclass(frozen=True)
class FirstOfAll:
    """What to do first on several traces.

    Attributes:
        items: each rule's finding once, where it costs most.
        more: how many other findings there are.
        anchor: the id of the section with the findings of the trace that the first one is from.
    """

    items: list[Finding]
    more: int
    anchor: str


def single_ranks(ranks: Ranks) -> list[Finding]:
    """The findings of single ranks, each under the name of the ranks that have it."""
    return [replace(item, variant=ranks_of_finding_text(item, ranks.count)) for item in ranks.in_single_ranks]


def first_of_all(traces: Sequence[TraceView], ranks: Ranks | None) -> FirstOfAll:
    """What to do first on several traces: each rule once, where it costs most."""
    together = () if ranks is None else ranks.findings
    if ranks is not None and ranks.in_single_ranks:
        listed = [*together, *single_ranks(ranks)]
        chosen = recommended(ranked(listed))
        return FirstOfAll(items=chosen, more=len(listed) - len(chosen), anchor="findings")
    # Traces that are not the ranks of one job, or an analysis by a steptrace before this one.
    single = [replace(item, variant=view.title) for view in traces for item in view.trace.findings]
    listed = [*together, *single]
    chosen = recommended(ranked(listed))
    sections = {view.title: f"trace-{number}-findings" for number, view in enumerate(traces)}
    anchor = "findings"
    if chosen and chosen[0].variant:
        anchor = sections.get(chosen[0].variant, anchor)
    return FirstOfAll(items=chosen, more=len(listed) - len(chosen), anchor=anchor)


def why(traces: Sequence[TraceView]) -> str:
    """Why a step takes as long as it does; of several traces that of the one whose step is most of one part."""
    reasons = [(view, reason) for view in traces if (reason := reason_of(view.trace)) is not None]
    if not reasons:
        return ""
    view, reason = max(reasons, key=lambda pair: pair[1].share)
    if len(traces) == 1:
        return reason_text(reason)
    likewise = ""
    if len(reasons) == len(traces) and all(_is_alike(other, reason) for _, other in reasons):
        other_traces = len(traces) - 1
        likewise = (
            " (the other one likewise)" if other_traces == 1 else f" (all {fmt.count(other_traces)} others likewise)"
        )
    return f"{view.title}{likewise}: {reason_text(reason)}"


def _is_alike(left: Reason, right: Reason) -> bool:
    """Whether two reasons name the same part of a step, and the same thing that takes most of it."""
    return (left.kind, left.name, left.meanwhile) == (right.kind, right.name, right.meanwhile)


def in_words(summary: Summary, predicted: Predicted | None = None) -> str:
    """The page in a few lines of plain text, see `answer`."""
    return as_text(answer(summary, predicted))


def answer(summary: Summary, predicted: Predicted | None = None) -> list[TextLine]:
    """The page in a few lines: its answer, why, what to do first, and what to know of the record of one trace."""
    traces = trace_views(summary)
    if len(traces) == 1:
        head = headline(summary.traces[0], predicted)
        items = first_of_one(traces[0], predicted)
    else:
        head = f"{title_of_several(traces)}: {headline_of_all(summary.traces, summary.ranks)}"
        items = first_of_all(traces, summary.ranks).items
    reason = why(traces)
    because = [TextLine(f"Why: {reason}", "why")] if reason else []
    care = [TextLine(text, "note") for text in cautions(traces)]
    if not items:
        return [TextLine(head, "answer"), *because, TextLine(nothing_to_advise(traces)), *care]
    lines = [TextLine(head, "answer")]
    if _is_of_profile(traces[0], items[0]):
        profiled = fmt.duration_ms(traces[0].step_ms)
        unprofiled = fmt.duration_ns(traces[0].trace.unprofiled_step_ns)
        lines.append(TextLine(f"Of profiled steps ({profiled} each, unprofiled {unprofiled}):"))
    return [*lines, *because, *_first_lines(items[0]), *care]


def _first_lines(first: Finding) -> list[TextLine]:
    """The finding to begin with, what acting on it saves, and what to do."""
    whose = f"{first.variant}: " if first.variant else ""
    lines = [TextLine(f"First: {whose}{first.claim}", "first")]
    gain = gain_text(first)
    if gain:
        lines.append(TextLine(f"  {fmt.capitalised(gain)}."))
    if first.advice:
        lines.append(TextLine(f"  {first.advice}"))
    return lines


def _is_of_profile(view: TraceView, item: Finding) -> bool:
    """Whether a finding's figures are of profiled steps, while unprofiled ones were timed, too."""
    if view.trace.unprofiled_step_ns is None or not view.trace.steps or item.rule == PREDICTED_SYNCS:
        return False
    return item.rule != "input_bound" or view.trace.input.unprofiled_wait_ns is None
