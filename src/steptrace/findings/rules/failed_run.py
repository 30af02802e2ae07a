"""Runs of a variant failed, were killed or are missing."""

from collections.abc import Iterator
from typing import Annotated, Final

from steptrace.documents.base import field
from steptrace.documents.variant import VariantResult
from steptrace.findings.endings import RunEnding, endings_of, runs_in_words
from steptrace.findings.rule import BaseFigures, Match, Rule, Words, advise, per_variant
from steptrace.format import plural


class Figures(BaseFigures, frozen=True, kw_only=True):
    """Runs without a result."""

    runs: Annotated[int, field("Runs of the variant.")]
    endings: Annotated[tuple[RunEnding, ...], field("Those without a result.")]
    only_missing: Annotated[bool, field("Whether all of them have not run, so that none failed.")]


def _find(variant: VariantResult) -> Iterator[Match[Figures]]:
    failed = [run for run in variant.runs if run.status not in ("ok", "out of memory")]
    if not failed:
        return
    missing = all(run.status == "not run" for run in failed)
    yield Match(
        severity="warning" if missing else "high",
        figures=Figures(runs=len(variant.runs), endings=endings_of(failed), only_missing=missing),
    )


def _words(figures: Figures) -> Words:
    how = "are missing" if figures.only_missing else "failed"
    return Words(f"{len(figures.endings)} of {plural(figures.runs, 'run')} {how}", runs_in_words(figures.endings))


RULE: Final = Rule(
    name="failed_run",
    topic="results",
    figures=Figures,
    words=_words,
    in_study=per_variant(_find),
    condition="a run failed, was killed or is missing",
    source="the supervisor's status",
    advice=advise("Read the run's `train.log`, then run the workflow again: it repeats only the failed runs."),
    counter_check="Run it again: a failure that does not repeat points to the machine.",
)
