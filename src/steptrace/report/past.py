"""The index's charts of past results: each variant's step time in those kept as baselines, and now."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison, StepTimes
from steptrace.judging.history import KeptResult, history
from steptrace.report.draw.cells import Dot, course_cell
from steptrace.report.draw.svg import InlineSvg
from steptrace.report.study.model import title


@dataclass(frozen=True)
class PastVariant:
    """One variant over time: its course as a picture, its first and its present step time, and now over the last kept.

    `change` is None where the variant is not in the last kept result, or not measured now.
    """

    name: str
    course: InlineSvg
    first: str
    now: str
    change: str | None


@dataclass(frozen=True)
class PastStudy:
    """A study over time, on the machine of its present result.

    `times` names each result with its date; `changed` says which versions changed from one to the next; `elsewhere`
    names kept results of other machines or scales, whose step times are not comparable.
    """

    title: str
    times: tuple[str, ...]
    changed: tuple[str, ...]
    variants: tuple[PastVariant, ...]
    elsewhere: tuple[str, ...]


def past_studies(comparisons: Sequence[Comparison], kept: Iterable[Path]) -> tuple[PastStudy, ...]:
    """The studies of which a result was kept that can be held against the present one.

    Args:
        comparisons: the present results.
        kept: files that `steptrace baseline save` wrote.
    """
    found = history(kept, comparisons)
    studies = (_past(title(comparison), found[comparison.study]) for comparison in comparisons)
    return tuple(study for study in studies if study is not None)


def _past(heading: str, results: Sequence[KeptResult]) -> PastStudy | None:
    now = results[-1]
    shown = [result for result in results if result.machine == now.machine]
    elsewhere = tuple(result.name for result in results if result.machine != now.machine)
    if len(shown) < 2:
        return None
    names = dict.fromkeys(name for result in reversed(shown) for name in result.step_ms)
    return PastStudy(
        heading,
        tuple(map(_when, shown)),
        tuple(filter(None, map(_changed, shown, shown[1:]))),
        tuple(_variant(name, shown) for name in names),
        elsewhere,
    )


def _when(result: KeptResult) -> str:
    return result.name if result.saved_at is None else f"{result.name}, {result.saved_at:%Y-%m-%d}"


def _changed(before: KeptResult, after: KeptResult) -> str:
    """The versions that are not the same, in words; empty if all are."""
    keys = [key for key in before.versions if before.versions[key] != after.versions[key]]
    words = ", ".join(f"{key} {before.versions[key]} → {after.versions[key]}" for key in keys)
    return f"{before.name} to {after.name}: {words}" if words else ""


def _variant(name: str, results: Sequence[KeptResult]) -> PastVariant:
    times = [result.step_ms.get(name) for result in results]
    dots = [None if found is None else _dot(result, found) for result, found in zip(results, times, strict=True)]
    medians = [None if found is None else found.median for found in times]
    words = ", ".join(f"{_when(r)}: {fmt.duration_ms(ms)}" for r, ms in zip(results, medians, strict=True))
    now, last = medians[-1], medians[-2]
    return PastVariant(
        name,
        course_cell(dots, f"{name} over time. {words}"),
        fmt.duration_ms(next((ms for ms in medians if ms is not None), None)),
        fmt.duration_ms(now),
        f"{now / last:.3g}×" if now and last else None,
    )


def _dot(result: KeptResult, found: StepTimes) -> Dot:
    return Dot(found.median, found.low, found.high, f"{_when(result)}: {fmt.duration_ms(found.median)}")
