"""Runs of a variant ran out of memory."""

from collections.abc import Iterator
from typing import Annotated, Final

from steptrace.documents.base import field
from steptrace.documents.variant import VariantResult
from steptrace.findings.endings import RunEnding, endings_of, runs_in_words
from steptrace.findings.rule import BaseFigures, Match, Rule, Words, advise, per_variant
from steptrace.format import plural


class Figures(BaseFigures, frozen=True, kw_only=True):
    """Runs that ran out of memory."""

    runs: Annotated[int, field("Runs of the variant.")]
    endings: Annotated[tuple[RunEnding, ...], field("Those that ran out of memory.")]


def _find(variant: VariantResult) -> Iterator[Match[Figures]]:
    endings = endings_of(run for run in variant.runs if run.status == "out of memory")
    if endings:
        yield Match(severity="high", figures=Figures(runs=len(variant.runs), endings=endings))


def _words(figures: Figures) -> Words:
    return Words(
        f"{len(figures.endings)} of {plural(figures.runs, 'run')} ran out of memory", runs_in_words(figures.endings)
    )


RULE: Final = Rule(
    name="out_of_memory",
    topic="results",
    figures=Figures,
    words=_words,
    in_study=per_variant(_find),
    condition="a run ended out of memory",
    source="the supervisor's status",
    advice=advise("Lower the batch size, checkpoint activations, or use a smaller precision."),
    counter_check="Look for other processes on the device: its memory may not have been free.",
    study="memory",
)
