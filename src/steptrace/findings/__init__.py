"""Findings: what in a comparison deserves attention, why, and what to do about it.

`RULES` is a plain tuple. A rule looks at a comparison and yields a match wherever its condition holds; the rule carries
the threshold and its source, and the check that could refute it. Nothing is read or measured here: a figure that was
not measured fires no rule.
"""

from dataclasses import asdict
from typing import Any, Final

from steptrace.findings.model import Finding, Json, Match, Rule
from steptrace.findings.step_time import STEP_TIME_RULES
from steptrace.findings.sync_cost import SYNC_RULES
from steptrace.findings.trust import TRUST_RULES

RULES: Final[tuple[Rule, ...]] = (*SYNC_RULES, *STEP_TIME_RULES, *TRUST_RULES)

_SEVERITIES: Final = ("high", "warning", "info")

__all__ = ["RULES", "Finding", "Rule", "find", "with_findings"]


def with_findings(comparison: Json) -> dict[str, Any]:
    """The comparison (the content of comparison.json) with its `findings` filled in."""
    return {**comparison, "findings": [asdict(finding) for finding in find(comparison)]}


def find(comparison: Json) -> list[Finding]:
    """All findings of a comparison: dearest first, then by severity, then in the order of the rules and variants."""
    found = [_finding(rule, match) for rule in RULES for match in rule.find(comparison)]
    return sorted(found, key=lambda item: (-(item.cost_ns_per_step or 0), _SEVERITIES.index(item.severity)))


def _finding(rule: Rule, match: Match) -> Finding:
    return Finding(
        rule=rule.name,
        severity=match.severity,
        claim=match.claim,
        cost_ns_per_step=None if match.cost_ns_per_step is None else round(match.cost_ns_per_step),
        source=match.source,
        evidence=match.evidence,
        advice=match.advice or rule.advice,
        counter_check=match.counter_check or rule.counter_check,
        variant=match.variant,
    )
