"""Findings: what in a comparison or a trace deserves attention, why, and what to do about it.

`RULES` (on comparisons) and `TRACE_RULES` (on traces, see `findings.trace`) are plain tuples. A rule looks at figures
and yields a match wherever its condition holds; it carries the threshold and its source, and the check that could
refute it. Nothing is read or measured here: a figure that was not measured fires no rule.

A study has the findings of both: those of its own rules, and of the trace rules what most runs of a variant agree on
(`trace_findings` of the comparison), except where a rule of its own has the same name, for it knows more: unprofiled
times, and all runs.
"""

from collections.abc import Iterator
from typing import Any, Final

from msgspec.structs import replace

from steptrace.documents.comparison import Comparison
from steptrace.documents.finding import Finding
from steptrace.findings.model import Rule, ranked, to_finding
from steptrace.findings.step_time import STEP_TIME_RULES
from steptrace.findings.sync_cost import SYNC_RULES
from steptrace.findings.trace import RANK_RULES, TRACE_RULES, find_in_ranks, find_in_trace, with_trace_findings
from steptrace.findings.trust import TRUST_RULES

#: On a comparison.
RULES: Final[tuple[Rule[Comparison], ...]] = (*SYNC_RULES, *STEP_TIME_RULES, *TRUST_RULES)

_OWN: Final = frozenset(rule.name for rule in RULES)

__all__ = [
    "RANK_RULES",
    "RULES",
    "TRACE_RULES",
    "Finding",
    "Rule",
    "find",
    "find_in_ranks",
    "find_in_trace",
    "with_findings",
    "with_trace_findings",
]


def with_findings(comparison: Comparison) -> Comparison:
    """The comparison with its `findings` filled in."""
    return replace(comparison, findings=tuple(find(comparison)))


def find(comparison: Comparison) -> list[Finding]:
    """All findings of a comparison: errors first, then the most expensive (see `findings.model.ranked`)."""
    own = [to_finding(rule, match) for rule in RULES for match in rule.find(comparison)]
    rules: tuple[Rule[Any], ...] = (*RULES, *TRACE_RULES, *RANK_RULES)
    return ranked([*own, *_of_traces(comparison)], rules)


def _of_traces(comparison: Comparison) -> Iterator[Finding]:
    """What the traces of each variant add to what the comparison's own rules look at."""
    for variant in comparison.variants:
        for item in variant.trace_findings:
            if item.rule not in _OWN:
                yield replace(item, variant=variant.name)
