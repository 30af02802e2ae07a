"""Findings on traces: rules on one trace's entry of summary.json, and on several ranks together.

A rule is data (see `findings.model.Rule`), one module a topic. A rule that has the name of one on comparisons is about
the same cause; in a study the comparison's stands. A figure that was not measured fires no rule.
"""

from typing import Final

from msgspec.structs import replace

from steptrace.documents.finding import SEVERITIES, Finding
from steptrace.documents.summary import Summary, TraceSummary
from steptrace.findings.model import Rule, of_slow_profile, ranked, to_finding
from steptrace.findings.trace.communication import COMMUNICATION_RULES, STRAGGLER_RULES
from steptrace.findings.trace.compute import ARITHMETIC_RULES, OPTIMIZER_RULES
from steptrace.findings.trace.data import COPY_RULES, INPUT_RULES
from steptrace.findings.trace.memory import MEMORY_RULES
from steptrace.findings.trace.quality import QUALITY_RULES
from steptrace.findings.trace.waiting import WAITING_RULES
from steptrace.findings.trace.window import Window, cap_by_critical_path, window_of, without_training

#: On one trace.
TRACE_RULES: Final[tuple[Rule[Window], ...]] = (
    *INPUT_RULES,
    *WAITING_RULES,
    *COPY_RULES,
    *ARITHMETIC_RULES,
    *OPTIMIZER_RULES,
    *COMMUNICATION_RULES,
    *MEMORY_RULES,
    *QUALITY_RULES,
)
#: On the whole summary, of several ranks.
RANK_RULES: Final[tuple[Rule[Summary], ...]] = STRAGGLER_RULES


def with_trace_findings(summary: Summary) -> Summary:
    """The summary with the `findings` of every trace, and of the ranks together, filled in."""
    traces = tuple(replace(entry, findings=tuple(find_in_trace(entry))) for entry in summary.traces)
    ranks = None if summary.ranks is None else replace(summary.ranks, findings=tuple(find_in_ranks(summary)))
    return replace(summary, traces=traces, ranks=ranks)


def find_in_trace(entry: TraceSummary) -> list[Finding]:
    """All findings of one trace, by its entry in summary.json: the severest first, of these the most expensive.

    Symptoms are distinguished from causes by what they take; the ceilings are then capped by the critical path.
    """
    window = window_of(entry)
    found = ranked((finding for rule in TRACE_RULES for finding in window.find(rule)), TRACE_RULES)
    slower = _slower(entry)
    found = [cap_by_critical_path(without_training(finding, entry), window) for finding in found]
    return sorted((of_slow_profile(finding, slower) for finding in found), key=_severest)


def _severest(finding: Finding) -> tuple[float, ...]:
    return SEVERITIES.index(finding.severity), -(finding.cost_ns_per_step or 0), -(finding.cost_share or 0)


def find_in_ranks(summary: Summary) -> list[Finding]:
    """All findings on how the ranks of a job differ, the most expensive first."""
    found = ranked((to_finding(rule, match) for rule in RANK_RULES for match in rule.find(summary)), RANK_RULES)
    slower = [ratio for entry in summary.traces if (ratio := _slower(entry)) is not None]
    return [of_slow_profile(finding, max(slower, default=None)) for finding in found]


def _slower(entry: TraceSummary) -> float | None:
    """How many times as long as an unprofiled step a profiled one takes; None where that is not known."""
    window = window_of(entry)
    return window.step_ns / entry.unprofiled_step_ns if entry.unprofiled_step_ns and window.steps else None
