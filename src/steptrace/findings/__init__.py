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

from steptrace.documents.comparison import Comparison, VariantResult
from steptrace.documents.finding import ANSWER, Finding
from steptrace.findings.answer import ANSWER_RULES
from steptrace.findings.model import Rule, of_slow_profile, ranked, to_finding
from steptrace.findings.step_time import STEP_TIME_RULES
from steptrace.findings.trace import RANK_RULES, TRACE_RULES, find_in_ranks, find_in_trace, with_trace_findings
from steptrace.findings.trust import TRUST_RULES

#: On a comparison.
RULES: Final[tuple[Rule[Comparison], ...]] = (*ANSWER_RULES, *STEP_TIME_RULES, *TRUST_RULES)

#: The rules whose costs are of unprofiled steps.
_UNPROFILED: Final = (ANSWER, "input_bound")
_OWN: Final = frozenset(rule.name for rule in RULES)


def with_findings(comparison: Comparison) -> Comparison:
    """The comparison with its `findings` filled in."""
    return replace(comparison, findings=tuple(find(comparison)))


def find(comparison: Comparison) -> list[Finding]:
    """All findings of a comparison: errors first, then the most expensive (see `findings.model.ranked`)."""
    if comparison.on_simulated_gpu:
        return ranked((to_finding(r, m) for r in RULES if r.priority for m in r.find(_untimed(comparison))), RULES)
    own = [to_finding(rule, match) for rule in RULES for match in rule.find(comparison)]
    rules: tuple[Rule[Any], ...] = (*RULES, *TRACE_RULES, *RANK_RULES)
    variants = {variant.name: variant for variant in comparison.variants}
    return ranked((_priced(item, variants.get(item.variant or "")) for item in (*own, *_of_traces(comparison))), rules)


def _untimed(comparison: Comparison) -> Comparison:
    """What a simulated GPU leaves to rest a finding on: predictions. A branch on a value may go either way.

    Of the rules only those with a priority are asked: the answer, what went wrong, and predicted syncs.
    """
    counts = ((v, replace(v.syncs, measured_per_step=None)) for v in comparison.variants)
    return replace(comparison, variants=tuple(replace(v, syncs=syncs) for v, syncs in counts))


def _priced(item: Finding, variant: VariantResult | None) -> Finding:
    if variant is None or item.rule in _UNPROFILED:
        return item
    return of_slow_profile(item, variant.profiled_over_unprofiled)


def _of_traces(comparison: Comparison) -> Iterator[Finding]:
    """What the traces of each variant add to what the comparison's own rules look at."""
    for variant in comparison.variants:
        for item in variant.trace_findings:
            if item.rule not in _OWN:
                yield replace(item, variant=variant.name)
