"""Findings: what in a trace or a study deserves attention, why, and what to do about it.

Rules are plain tuples. Those on traces (`TRACE_RULES`, `RANK_RULES`) look at a trace's entry of summary.json, or at a
variant's, which is its runs' as one; a study has its own besides (`STUDY_RULES`): which variant to use, and what can
be relied on. A rule yields a match wherever its condition holds; it carries the threshold and its source, and the check
that could refute it. Nothing is read or measured here: a figure that was not measured fires no rule.
"""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from steptrace.documents.comparison import Comparison
from steptrace.documents.finding import Finding
from steptrace.documents.summary import Summary, TraceSummary
from steptrace.findings.communication import COMMUNICATION_RULES, STRAGGLER_RULES
from steptrace.findings.compute import COMPUTE_RULES, MEMORY_RULES
from steptrace.findings.data import COPY_RULES, INPUT_RULES
from steptrace.findings.rule import Rule, Window, of_slow_profile, ranked, to_finding, window_of
from steptrace.findings.study import STUDY_RULES
from steptrace.findings.verdict import verdict_of
from steptrace.findings.waiting import WAITING_RULES
from steptrace.findings.why import why
from steptrace.format import NS_PER_MS

#: On one trace.
TRACE_RULES: Final[tuple[Rule[Window], ...]] = (
    *INPUT_RULES,
    *WAITING_RULES,
    *COPY_RULES,
    *COMPUTE_RULES,
    *COMMUNICATION_RULES,
    *MEMORY_RULES,
)
#: On the whole summary, of several ranks.
RANK_RULES: Final[tuple[Rule[Summary], ...]] = STRAGGLER_RULES


def with_trace_findings(summary: Summary) -> Summary:
    """The summary with the `findings` of every trace, and of the ranks together, filled in."""
    traces = tuple(replace(entry, findings=tuple(find_in_trace(entry))) for entry in summary.traces)
    ranks = None if summary.ranks is None else replace(summary.ranks, findings=tuple(find_in_ranks(summary)))
    return replace(summary, traces=traces, ranks=ranks)


def find_in_trace(entry: TraceSummary) -> list[Finding]:
    """All findings of one trace: the severest first, of these the most expensive."""
    window = window_of(entry)
    found = [finding for rule in TRACE_RULES for finding in window.find(rule)]
    unprofiled = {"input_bound"} if entry.input.unprofiled_wait_ns is not None else set[str]()
    return ranked(item if item.rule in unprofiled else of_slow_profile(item, window.slower) for item in found)


def find_in_ranks(summary: Summary) -> list[Finding]:
    """All findings on how the ranks of a job differ, the most expensive first."""
    findings = (to_finding(rule, match) for rule in RANK_RULES for match in rule.find(summary))
    ratios = [window_of(entry).slower for entry in summary.traces]
    slower = max((ratio for ratio in ratios if ratio is not None), default=None)
    return ranked(of_slow_profile(finding, slower) for finding in findings)


def with_findings(study: Comparison) -> Comparison:
    """The comparison with its `findings` filled in, and with the reason `why` of each variant."""
    variants = tuple(replace(one, why=why(study.variant(one.baseline), one)) for one in study.variants)
    return replace(study, variants=variants, findings=tuple(find(study)))


def find(study: Comparison) -> list[Finding]:
    """All findings of a study: its answer, then by severity and cost."""
    own = [to_finding(rule, match) for rule in STUDY_RULES for match in rule.find(study)]
    return ranked((*own, *_of_traces(study)))


def _of_traces(study: Comparison) -> Iterator[Finding]:
    for variant in study.variants:
        if variant.trace is None:
            continue
        step_ns = None if variant.step_time_ms is None else round(variant.step_time_ms * NS_PER_MS)
        # That of all runs, as the page has it, not of the profiled ones.
        trace = replace(variant.trace, unprofiled_step_ns=step_ns or variant.trace.unprofiled_step_ns)
        findings = find_in_trace(trace)
        if variant.ranks is not None:
            findings += find_in_ranks(Summary(warnings=(), traces=(trace,), ranks=variant.ranks))
        for item in findings:
            # The wait of unprofiled steps is the study's own finding: one figure for one wait.
            if item.rule != "input_bound" or variant.input is None or variant.input.share is None:
                yield replace(of_slow_profile(item, variant.profiled_over_unprofiled), variant=variant.name)
