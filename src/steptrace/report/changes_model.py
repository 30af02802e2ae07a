"""What sets a variant apart from its baseline, as plain data: the step's parts, the syncs, and what was foretold."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from steptrace.report.sites import Site

#: Of a step: a part's difference below it gets no number.
_SMALLEST_SHARE = 0.01


@dataclass(frozen=True)
class Difference:
    """By how much a part of a step (None: the whole step) differs from the baseline's, in ms, with its interval."""

    category: str | None
    delta_ms: float
    low: float | None
    high: float | None
    baseline_ms: float
    variant_ms: float

    @property
    def shows(self) -> bool:
        """Whether there is any of it on either side."""
        return bool(self.baseline_ms or self.variant_ms)

    def matters(self, step_ms: float) -> bool:
        """Whether the difference is worth a number beside a step of this length."""
        return abs(self.delta_ms) >= _SMALLEST_SHARE * step_ms

    def is_too_wide(self, step_ms: float) -> bool:
        """Whether its interval is wider than both steps, so that it says nothing."""
        return self.low is not None and self.high is not None and self.high - self.low > 2 * step_ms


@dataclass(frozen=True)
class SyncChange(Site):
    """One site's syncs per step in the baseline and in the variant; times are ns a step, None where predicted.

    The place is the baseline's; the variant's own is given where it differs. The figures of `Site` itself stay None.
    """

    variant_file: str | None
    variant_line: int | None
    baseline_count_per_step: float
    variant_count_per_step: float
    baseline_blocked_ns_per_step: float | None
    variant_blocked_ns_per_step: float | None
    baseline_exposed_idle_ns_per_step: float | None
    variant_exposed_idle_ns_per_step: float | None

    @property
    def changed(self) -> bool:
        """Whether the number of syncs per step differs."""
        return self.baseline_count_per_step != self.variant_count_per_step


@dataclass(frozen=True)
class Foretold:
    """A variant's step time foretold from its baseline's trace, and the measured one; None with a reason."""

    removed_per_step: float
    added_per_step: float
    predicted_ms: float | None
    measured_ms: float
    error: float | None
    replay_error: float | None
    reason: str | None


@dataclass(frozen=True)
class Prices:
    """What were gained without any of a variant's syncs, by replay and at most; profiled ns a step."""

    all_saved_ns_per_step: float | None
    all_ceiling_ns_per_step: float | None
    replay_error: float | None
    reason: str | None


@dataclass(frozen=True)
class Changes:
    """Everything of this kind about one variant; `basis` says whether its syncs were measured or predicted."""

    total: Difference | None
    waterfall: tuple[Difference, ...]
    basis: str | None
    syncs: tuple[SyncChange, ...]
    foretold: Foretold | None
    prices: Prices | None


def load_changes(raw: Mapping[str, Any]) -> Changes:
    """The changes from a variant's entry in comparison.json; whatever is missing there is None or empty."""
    diff, foretold, prices = (raw.get(key) or {} for key in ("sync_diff", "whatif", "sync_prices"))
    total = raw.get("step_difference")
    return Changes(
        total=_difference(total) if total else None,
        waterfall=tuple(_difference(item) for item in raw.get("waterfall") or ()),
        basis=diff.get("basis"),
        syncs=tuple(SyncChange(**_fields(SyncChange, item)) for item in diff.get("sites") or ()),
        foretold=Foretold(**_fields(Foretold, foretold)) if foretold else None,
        prices=Prices(**_fields(Prices, prices)) if prices else None,
    )


def _difference(raw: Mapping[str, Any]) -> Difference:
    return Difference(
        category=raw.get("category"),
        delta_ms=raw["delta_ms"],
        low=raw.get("low"),
        high=raw.get("high"),
        baseline_ms=raw["baseline_ns"] / 1e6,
        variant_ms=raw["variant_ns"] / 1e6,
    )


def _fields(kind: type[SyncChange | Foretold | Prices], raw: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: raw.get(field.name) for field in fields(kind)}
