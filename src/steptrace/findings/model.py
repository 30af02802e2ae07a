"""What a rule is, what it yields, and the finding that becomes of it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

Severity = Literal["info", "warning", "high"]
#: A comparison or one variant of it, as it stands in comparison.json.
Json = Mapping[str, Any]

NS_PER_MS: Final = 1e6


@dataclass(frozen=True)
class Finding:
    """One claim about a comparison, as it stands in comparison.json.

    `cost_ns_per_step` is an upper bound on what a remedy gains, None where that is not known. `source` is the line of
    code, `variant` the variant concerned (None: the study).
    """

    rule: str
    severity: Severity
    claim: str
    cost_ns_per_step: int | None
    source: dict[str, Any] | None
    evidence: tuple[str, ...]
    advice: str
    counter_check: str
    variant: str | None


@dataclass(frozen=True)
class Match:
    """Where a rule's condition holds: what is special to this case.

    `advice` and `counter_check` replace the rule's own if given. `variant` is filled in by `per_variant`.
    """

    severity: Severity
    claim: str
    evidence: tuple[str, ...]
    cost_ns_per_step: float | None = None
    source: dict[str, Any] | None = None
    advice: str | None = None
    counter_check: str | None = None
    variant: str | None = None


@dataclass(frozen=True)
class Rule:
    """One rule: `find` yields a match for each place in a comparison where its condition holds.

    `condition` says in words when it fires, `basis` where its thresholds come from.
    """

    name: str
    condition: str
    basis: str
    advice: str
    counter_check: str
    find: Callable[[Json], Iterator[Match]]


def per_variant(check: Callable[[Json], Iterator[Match]]) -> Callable[[Json], Iterator[Match]]:
    """Make a check of one variant a check of all variants of a comparison."""

    def find(comparison: Json) -> Iterator[Match]:
        for variant in comparison["variants"]:
            for match in check(variant):
                yield replace(match, variant=variant["name"])

    return find


def in_ms(ns: float) -> str:
    """Nanoseconds as milliseconds with three digits."""
    return f"{ns / NS_PER_MS:.3g} ms"
