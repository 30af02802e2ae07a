"""Findings: what deserves attention in a trace or a study, why, and what to do about it.

A rule is one module of `findings.rules`. It looks at a trace's entry of summary.json, at the traces of several ranks,
or at a study. A variant's entry combines the traces of its runs. A rule yields a match wherever its condition holds.
Nothing is read or measured here, and a figure that was not measured fires no rule.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec.structs import replace

from steptrace.documents.comparison import Comparison
from steptrace.documents.finding import Finding, Source
from steptrace.documents.summary import Summary, TraceSummary
from steptrace.findings.in_trace import findings_of
from steptrace.findings.registry import RULES, words_of
from steptrace.findings.rule import AnyRule, of_slow_profile, ranked
from steptrace.findings.verdict import verdict_of
from steptrace.findings.why import why
from steptrace.findings.window import window_of
from steptrace.format import NS_PER_MS

__all__ = ["RULES", "AnyRule", "Finding", "find", "find_in_ranks", "find_in_trace", "verdict_of", "with_findings",
           "with_trace_findings", "words_of"]  # fmt: skip


def with_trace_findings(summary: Summary) -> Summary:
    """The summary with the `findings` of every trace, and of the ranks together, filled in."""
    traces = tuple(replace(entry, findings=tuple(find_in_trace(entry))) for entry in summary.traces)
    ranks = summary.ranks
    if ranks is not None:
        ranks = replace(ranks, findings=tuple(find_in_ranks(summary)), in_single_ranks=tuple(_in_single_ranks(traces)))
    return replace(summary, traces=traces, ranks=ranks)


def _in_single_ranks(traces: Sequence[TraceSummary]) -> list[Finding]:
    """The findings of all ranks' traces, each rule and line once, as on the rank where it is worst."""
    same: dict[tuple[object, ...], list[tuple[int, Finding]]] = {}
    for place, entry in enumerate(traces):
        rank = place if entry.rank is None else entry.rank
        for item in entry.findings:
            same.setdefault(_claimed(item), []).append((rank, item))
    merged = []
    for items in same.values():
        worst = ranked([item for _, item in items])[0]
        rank = next(rank for rank, item in items if item is worst)
        ranks = tuple(sorted({rank for rank, _ in items}))
        merged.append(replace(worst, source=replace(worst.source or Source(), rank=rank), ranks=ranks))
    return ranked(merged)


def _claimed(item: Finding) -> tuple[object, ...]:
    """What tells findings of one trace apart: the rule, the line where it names one, and what the rule itself names.

    The rank in a finding's source is not part of it: the same finding has none in the trace of its rank.
    """
    at = item.source or Source()
    rule = RULES.get(item.rule)
    figures = () if rule is None else rule.told_apart_by
    return (item.rule, at.file, at.line, at.function, *(_figure(item, name) for name in figures))


def _figure(item: Finding, name: str) -> object:
    """A figure of a finding by its name, in which dots lead into a struct; None where an earlier version lacks it."""
    value: Any = item.figures
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def find_in_trace(entry: TraceSummary) -> list[Finding]:
    """All findings of one trace, by severity and then by cost."""
    window = window_of(entry)
    findings = [finding for rule in RULES.values() for finding in findings_of(rule, window)]
    unprofiled = {"input_bound"} if entry.input.unprofiled_wait_ns is not None else set[str]()
    return ranked(item if item.rule in unprofiled else of_slow_profile(item, window.slower) for item in findings)


def find_in_ranks(summary: Summary) -> list[Finding]:
    """All findings on how the ranks of a job differ, the most expensive first."""
    findings = (
        rule.finding(match) for rule in RULES.values() if rule.in_ranks is not None for match in rule.in_ranks(summary)
    )
    ratios = [window_of(entry).slower for entry in summary.traces]
    slower = max((ratio for ratio in ratios if ratio is not None), default=None)
    return ranked(of_slow_profile(finding, slower) for finding in findings)


def with_findings(study: Comparison) -> Comparison:
    """The comparison with its `findings` filled in, and with the reason `why` of each variant."""
    variants = tuple(replace(variant, why=why(study.variant(variant.baseline), variant)) for variant in study.variants)
    return replace(study, variants=variants, findings=tuple(find(study)))


def find(study: Comparison) -> list[Finding]:
    """All findings of a study: its answer, then by severity and cost."""
    of_study = (
        rule.finding(match) for rule in RULES.values() if rule.in_study is not None for match in rule.in_study(study)
    )
    return ranked((*of_study, *_of_traces(study)))


#: A finding of another rank counts where it costs clearly more than on the rank of the trace.
_CLEARLY: Final = 1.1


def _with_other_ranks(findings: list[Finding], single: Sequence[Finding], rank: int | None) -> list[Finding]:
    """The findings of one rank's trace, and those that only other ranks have, or have at a clearly higher cost."""
    by_claim = {_claimed(item): item for item in findings}
    chosen = {}
    for item in single:
        here = by_claim.get(_claimed(item))
        if here is None or (
            item.source is not None
            and item.source.rank != rank
            and (item.cost_share or 0) > _CLEARLY * (here.cost_share or 0)
        ):
            chosen[_claimed(item)] = item
    return [*(item for key, item in by_claim.items() if key not in chosen), *chosen.values()]


def _of_traces(study: Comparison) -> Iterator[Finding]:
    for variant in study.variants:
        if variant.trace is None:
            continue
        step_ns = None if variant.step_time_ms is None else round(variant.step_time_ms * NS_PER_MS)
        # The step time of all runs, as on the page, not that of the profiled runs alone.
        trace = replace(variant.trace, unprofiled_step_ns=step_ns or variant.trace.unprofiled_step_ns)
        findings = find_in_trace(trace)
        if variant.ranks is not None:
            findings += find_in_ranks(Summary(warnings=(), traces=(trace,), ranks=variant.ranks))
            findings = _with_other_ranks(findings, variant.ranks.in_single_ranks, trace.rank)
        for item in findings:
            # The wait of unprofiled steps is the study's own finding: one figure for one wait.
            if item.rule != "input_bound" or variant.input is None or variant.input.share is None:
                yield replace(of_slow_profile(item, variant.profiled_over_unprofiled), variant=variant.name)
