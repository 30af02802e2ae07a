"""The section of a step in which variants differ: its time from sync to sync, if the whole step hides the difference.

The loss of a large network may be a hundredth of the step. Then variants of the loss have the same step time, and only
the loss timed by itself says which one is faster.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from steptrace.documents.answer import NamedTime, SectionTimes
from steptrace.documents.comparison import Comparison
from steptrace.documents.variant import VariantResult

#: A section tells two variants apart from this ratio of their times on: medians of a few steps scatter. Our threshold.
LEAST_RATIO: Final = 1.5
#: Without a verdict, steps that differ by less than this share count as equally long.
_SAME_STEP: Final = 0.02


def differing_section(study: Comparison) -> str | None:
    """The section whose time differs most between the variants; None where none differs enough, or none was timed."""
    if any(variant.cell for variant in study.variants):
        return None  # a matrix changes the work itself
    return _widest([variant for variant in study.variants if variant.synced_sections_ms])


def hidden_section(study: Comparison) -> SectionTimes | None:
    """The section that shows a difference between variants whose whole steps show none; None without one."""
    section = differing_section(study)
    steps = study.step_times_ms
    close = [variant for variant in _alike(study) if section is not None and section in _sections(variant)]
    if section is None or _widest(close) != section:
        return None
    times = {variant.name: _sections(variant)[section] for variant in study.variants if section in _sections(variant)}
    return SectionTimes(
        section=section,
        times=_sorted(times),
        hidden=_sorted({variant.name: steps[variant.name] for variant in close}),
    )


def _sorted(times: dict[str, float]) -> tuple[NamedTime, ...]:
    return tuple(NamedTime(name=name, step_ms=times[name]) for name in sorted(times, key=times.__getitem__))


def _sections(variant: VariantResult) -> dict[str, float]:
    return variant.synced_sections_ms or {}


def _alike(study: Comparison) -> list[VariantResult]:
    """The variants that are as fast as the fastest one; by their verdicts, or without any by their step times."""
    if study.alike:
        return [variant for variant in study.variants if variant.name in study.alike]
    if any(variant.verdict in ("faster", "slower") for variant in study.variants):
        return []
    steps = study.step_times_ms
    longest = min(steps.values(), default=0.0) * (1 + _SAME_STEP)
    return [variant for variant in study.measured if steps[variant.name] <= longest]


def _widest(variants: list[VariantResult]) -> str | None:
    """The section with the largest ratio of longest to shortest time, of those that all of the variants have."""
    if len(variants) < 2:
        return None
    shared = set.intersection(*(set(_sections(variant)) for variant in variants))
    ratios: dict[str, float] = {}
    for section in sorted(shared):
        times = [_sections(variant)[section] for variant in variants]
        if min(times) > 0 and max(times) >= LEAST_RATIO * min(times):
            ratios[section] = max(times) / min(times)
    return max(ratios, key=ratios.__getitem__, default=None)


@dataclass(frozen=True)
class Turn:
    """The value of a matrix's key from which a section of a variant takes clearly less time than in its baseline.

    Attributes:
        entry: the variant's name in the study's file.
        baseline: that of its baseline.
        value: the first value at which it does, if it does at all later ones, too; None if it does not at the last.
    """

    entry: str
    baseline: str
    value: str | None


def matrix_section(study: Comparison) -> str | None:
    """The section that differs most between the variants of any one cell of a matrix; None where none does enough."""
    cells: dict[tuple[tuple[str, str], ...], list[VariantResult]] = {}
    for variant in study.variants:
        if variant.cell and variant.synced_sections_ms:
            cells.setdefault(tuple(variant.cell.items()), []).append(variant)
    widest: dict[str, float] = {}
    for variants in cells.values():
        section = _widest(variants)
        if section is not None:
            times = [_sections(variant)[section] for variant in variants]
            widest[section] = max(widest.get(section, 0.0), max(times) / min(times))
    return max(widest, key=widest.__getitem__, default=None)


def turn(
    section: str, row: Sequence[VariantResult | None], baselines: Sequence[VariantResult | None], key: str
) -> Turn | None:
    """The value from which a section of one entry of the study's file takes clearly less time than in its baseline.

    Args:
        section: its name.
        row: the entry's variants, by the values of the key in their order.
        baselines: their baselines.
        key: the matrix's key that has these values.

    Returns:
        None where the section was not timed at every value, or where the entry is the baseline.
    """
    pairs = [
        (variant, base)
        for variant, base in zip(row, baselines, strict=True)
        if variant is not None and base is not None
    ]
    timed = [(_sections(variant).get(section), _sections(base).get(section)) for variant, base in pairs]
    if not pairs or len(pairs) != len(row) or pairs[0][0] is pairs[0][1]:
        return None
    value = None
    for (variant, _), (ms, before_ms) in zip(reversed(pairs), reversed(timed), strict=True):
        if ms is None or before_ms is None:
            return None
        if before_ms < LEAST_RATIO * ms:
            break
        value = variant.cell.get(key)
    first, base = pairs[0]
    return Turn(first.entry or first.name, base.entry or base.name, value)
