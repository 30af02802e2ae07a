"""What a rule is, what it yields, and the finding that becomes of it; how findings are ranked.

A cost is a ceiling: what a perfect remedy could save at most, and no sum, since one instant can have several causes.
Shares are of a `ProfiledStep`: of a variant here, of a trace in `findings.trace.window`.
"""

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeVar

from msgspec import structs

from steptrace import format as fmt
from steptrace.documents.comparison import Breakdown, Comparison, SyncSiteOfVariant, VariantResult
from steptrace.documents.finding import SEVERITIES, SLOW_PROFILE, Finding, Severity, Source
from steptrace.format import NS_PER_MS
from steptrace.format import whole_percent as percent

#: What a rule looks at: a `Comparison`, a `TraceSummary`, or the whole `Summary` of several ranks.
Subject = TypeVar("Subject")

#: What figures are for, in words; a trace without steps is looked at as a whole.
A_STEP: Final = "a step"


@dataclass(frozen=True)
class Match:
    """Where a rule's condition holds: what is special to this case.

    `advice` and `counter_check` replace the rule's own if given, as do those of the rule's `case` of that name.
    `variant` is filled in by `per_variant`, and `cost_share` by whatever applies the rule, if the rule leaves it open.
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
    case: str | None = None


@dataclass(frozen=True)
class Rule(Generic[Subject]):
    """One rule: `find` yields a match for each place in a comparison, or in a trace, where its condition holds.

    Its words, and what else rules.toml says of it, are explained there. `priority` is that of a rule whose findings are
    not ranked by cost: `first` are errors, before all costs; `after_high` are those whose cost only a GPU can tell,
    behind costs of high severity; `answer` is what the study was made to find out, before all others.
    """

    name: str
    condition: str
    basis: str
    advice: str
    counter_check: str
    find: Callable[[Subject], Iterator[Match]]
    study: str | None = None
    explained_by: Sequence[str] = ()
    priority: Literal["answer", "first", "after_high"] | None = None
    path_class: str | None = None
    cases: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


Thresholds = Mapping[str, float | int | str]

#: What rules.toml says of each rule.
WORDS: Final[Mapping[str, Mapping[str, Any]]] = tomllib.loads(
    Path(__file__).with_name("rules.toml").read_text(encoding="utf-8")
)


def rule(
    name: str, find: Callable[[Subject], Iterator[Match]], thresholds: Thresholds | None = None, case: str | None = None
) -> Rule[Subject]:
    """The rule that rules.toml has under this name.

    Args:
        name: its name.
        find: what finds it.
        thresholds: what its condition and basis name in braces; a float is a share and written as a percentage.
        case: the case whose words replace its own.
    """
    said = {key: percent(value) if isinstance(value, float) else value for key, value in (thresholds or {}).items()}
    words = dict(WORDS[name])
    words |= {key: words[key].format(**said) for key in ("condition", "basis")}
    return Rule(name=name, find=find, **words | (words["cases"][case] if case else {}))


def to_finding(rule: Rule[Any], match: Match) -> Finding:
    """The finding that a match of a rule is."""
    of_match = vars(match) | {"cost_ns_per_step": None if (cost := match.cost_ns_per_step) is None else round(cost)}
    case = {} if (name := of_match.pop("case")) is None else rule.cases[name]
    of_match |= {key: of_match[key] or case.get(key, getattr(rule, key)) for key in ("advice", "counter_check")}
    return Finding(rule=rule.name, **of_match, basis=rule.basis, study=rule.study, condition=rule.condition)


def of_slow_profile(item: Finding, slower: float | None) -> Finding:
    """The finding without its cost, and no more than an info, where that is of a profile far slower than the step.

    `slower` is the profiled over the unprofiled step time, None where that is not known.
    """
    if slower is None or slower < SLOW_PROFILE or item.cost_ns_per_step is None:
        return item
    reason = f"in a profile that takes {fmt.significant(slower)} times as long as the step itself, so no cost is given"
    claim = f"{item.claim} ({reason})"
    return structs.replace(item, claim=claim, cost_ns_per_step=None, cost_share=None, severity="info")


def ranked(found: Iterable[Finding], rules: Iterable[Rule[Any]]) -> list[Finding]:
    """The findings without symptoms that others explain, the most important first.

    Errors lead. The rest goes by cost, then by severity, then as it came.
    """
    kept, rules = list(found), tuple(rules)
    causes = {rule.name: rule.explained_by for rule in rules if rule.explained_by}
    kept = [item for item in kept if not _explained(item, causes.get(item.rule, ()), kept)]
    priority = {rule.name: rule.priority for rule in rules}
    some_unknown = any(priority.get(item.rule) == "after_high" for item in kept)

    def tier(item: Finding) -> int:
        if priority.get(item.rule) in ("answer", "first"):
            return -1 if priority[item.rule] == "answer" else 0
        if not some_unknown or (item.severity == "high" and item.cost_share is not None):
            return 1
        return 2 if priority.get(item.rule) == "after_high" else 3

    return sorted(
        kept,
        key=lambda item: (
            tier(item),
            -(item.cost_ns_per_step or 0),
            -(item.cost_share or 0),
            SEVERITIES.index(item.severity),
        ),
    )


def _explained(item: Finding, causes: Sequence[str], found: list[Finding]) -> bool:
    """Whether findings of these rules on the same variant account for half of the item's share of the step."""
    if not causes or not item.cost_share:
        return False
    shares = [other.cost_share or 0 for other in found if other.rule in causes and other.variant == item.variant]
    return sum(shares) >= item.cost_share / 2


@dataclass(frozen=True)
class ProfiledStep:
    """A mean profiled step with its syncs. `step_ns` is its length, for want of a trace that of an unprofiled step.

    `saved_ns` and `ceiling_ns` are what a step would gain without any of its syncs; `per` says in words what figures
    are for. What was not measured is None.
    """

    sites: tuple[SyncSiteOfVariant, ...]
    step_ns: float | None
    saved_ns: float | None
    ceiling_ns: float | None
    breakdown: Breakdown | None
    gpu_busy_pct: float | None
    nvml_util_pct: float | None = None
    per: str = A_STEP


def profiled_step(variant: VariantResult) -> ProfiledStep:
    """The profiled step of a variant."""
    prices = variant.sync_prices
    return ProfiledStep(
        sites=variant.sync_sites,
        step_ns=_step_ns(variant),
        saved_ns=None if prices is None else prices.all_saved_ns_per_step,
        ceiling_ns=None if prices is None else prices.all_ceiling_ns_per_step,
        breakdown=variant.breakdown_ms,
        gpu_busy_pct=variant.gpu_busy_pct,
        nvml_util_pct=variant.nvml_util_pct,
    )


def length_ms(parts: Breakdown) -> float:
    """The step that the parts add up to, ms."""
    return parts.compute + parts.exposed_comm + parts.exposed_memory + parts.idle


def per_variant(check: Callable[[VariantResult], Iterator[Match]]) -> Callable[[Comparison], Iterator[Match]]:
    """Make a check of one variant a check of all variants of a comparison.

    A cost without a share of its own is a share of the profiled step (of the timed one, where that is all there is).
    """

    def find(comparison: Comparison) -> Iterator[Match]:
        for variant in comparison.variants:
            step_ns = _step_ns(variant)
            for match in check(variant):
                share = match.cost_share
                if share is None and match.cost_ns_per_step is not None and step_ns:
                    share = match.cost_ns_per_step / step_ns
                yield replace(match, variant=variant.name, cost_share=share)

    return find


def _step_ns(variant: VariantResult) -> float | None:
    """Mean step of the profiled window, else the median of the unprofiled step, ns; None if neither was measured."""
    traced_ms = 0.0 if variant.breakdown_ms is None else length_ms(variant.breakdown_ms)
    if traced_ms:
        return traced_ms * NS_PER_MS
    return None if variant.median_ms is None else variant.median_ms * NS_PER_MS
