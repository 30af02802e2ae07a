"""What a rule is, what it yields, and the finding that becomes of it; how findings are ranked.

A cost is an upper bound: what a perfect remedy could save, and no sum, since one instant can have several causes.
"""

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from msgspec import structs

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison
from steptrace.documents.finding import ANSWER, PREDICTED_SYNCS, SEVERITIES, Finding, Severity, Source
from steptrace.documents.variant import VariantResult
from steptrace.format import setting
from steptrace.limits import SLOW_PROFILE

#: What a rule looks at: a `Comparison`, a `TraceSummary`, or the whole `Summary` of several ranks.
Subject = TypeVar("Subject")

#: What figures are for, in words; a trace without steps is looked at as a whole.
PER_STEP: Final = "per step"


@dataclass(frozen=True)
class Match:
    """Where a rule's condition holds: what is special to this case.

    `advice` and `counter_check` replace the rule's own if given. `variant` is filled in by `per_variant`, and
    `cost_share` by whatever applies the rule, if the rule leaves it open.
    """

    severity: Severity
    claim: str
    evidence: tuple[str, ...]
    cost_ns_per_step: float | None = None
    source: Source | None = None
    advice: str | None = None
    counter_check: str | None = None
    variant: str | None = None
    cost_share: float | None = None


@dataclass(frozen=True)
class Rule(Generic[Subject]):
    """One rule: `find` yields a match for each place in a trace, or in a study, where its condition holds.

    Its words, and what else rules.toml says of it, are explained there.
    """

    name: str
    condition: str
    basis: str
    advice: str
    counter_check: str
    find: Callable[[Subject], Iterator[Match]]
    study: str | None = None
    gpu_work: bool = False


Thresholds = Mapping[str, float | int | str]

#: What rules.toml says of each rule.
WORDS: Final[Mapping[str, Mapping[str, Any]]] = tomllib.loads(
    Path(__file__).with_name("rules.toml").read_text(encoding="utf-8")
)


def rule(name: str, find: Callable[[Subject], Iterator[Match]], thresholds: Thresholds | None = None) -> Rule[Subject]:
    """The rule with this name in rules.toml.

    Args:
        name: its name.
        find: its function.
        thresholds: values for the braces in its condition and basis; a float is a share, written as a percentage.
    """
    values = {key: setting(value) if isinstance(value, float) else value for key, value in (thresholds or {}).items()}
    words = dict(WORDS[name])
    words |= {key: words[key].format(**values) for key in ("condition", "basis")}
    return Rule(name=name, find=find, **words)


def to_finding(rule: Rule[Any], match: Match) -> Finding:
    """The finding that a match of a rule is."""
    of_match = vars(match) | {"cost_ns_per_step": None if (cost := match.cost_ns_per_step) is None else round(cost)}
    of_match |= {key: of_match[key] or getattr(rule, key) for key in ("advice", "counter_check")}
    return Finding(rule=rule.name, **of_match, basis=rule.basis, study=rule.study, condition=rule.condition)


def of_slow_profile(item: Finding, slower: float | None) -> Finding:
    """The finding without its cost, and no more than an info, where that is of a profile far slower than the step.

    `slower` is the profiled over the unprofiled step time, None if unknown.
    """
    if slower is None or slower < SLOW_PROFILE or item.cost_ns_per_step is None:
        return item
    reason = f"in a profile that takes {fmt.significant(slower)} times as long as the step itself, so no cost is given"
    claim = f"{item.claim} ({reason})"
    return structs.replace(item, claim=claim, cost_ns_per_step=None, cost_share=None, severity="info")


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """A study's answer, then the findings by severity and cost.

    Of those of high severity the ones without a cost come first: errors, which nothing should be concluded before. So
    do predicted syncs among warnings.
    """
    return sorted(findings, key=_order)


def _order(item: Finding) -> tuple[float, ...]:
    unpriced = item.cost_ns_per_step is None and item.cost_share is None
    # A prediction is there only where no GPU has measured: what a CPU's step waits for says less of a GPU's.
    first = unpriced and (item.severity == "high" or item.rule == PREDICTED_SYNCS)
    costs = -(item.cost_ns_per_step or 0), -(item.cost_share or 0)
    return item.rule != ANSWER, SEVERITIES.index(item.severity), not first, *costs


def per_variant(check: Callable[[VariantResult], Iterator[Match]]) -> Callable[[Comparison], Iterator[Match]]:
    """Make a check of one variant a check of all variants of a study."""

    def find(study: Comparison) -> Iterator[Match]:
        for variant in study.variants:
            for match in check(variant):
                yield replace(match, variant=variant.name)

    return find
