"""The check of a variant's answer failed."""

from collections.abc import Iterator
from typing import Annotated, Final

from steptrace.documents.base import field
from steptrace.documents.run import ProcessError
from steptrace.documents.variant import VariantResult
from steptrace.findings.endings import ending_in_words, with_last_line
from steptrace.findings.rule import BaseFigures, Match, Rule, Words, advise, per_variant


class Figures(BaseFigures, frozen=True, kw_only=True):
    """How the check ended."""

    error: Annotated[ProcessError | None, field("How it failed, with the last line of its log; null if unknown.")]


def _find(variant: VariantResult) -> Iterator[Match[Figures]]:
    # Where every run failed, the check most probably did for the same reason, which `failed_run` names.
    every_run_failed = bool(variant.runs) and all(run.status == "failed" for run in variant.runs)
    if variant.equivalence.status == "failed" and not every_run_failed:
        yield Match(severity="high", figures=Figures(error=with_last_line(variant.equivalence.failure)))


def _words(figures: Figures) -> Words:
    return Words("the equivalence check failed, so its result is unchecked", (ending_in_words(figures.error),))


RULE: Final = Rule(
    name="equivalence_failed",
    topic="results",
    figures=Figures,
    words=_words,
    in_study=per_variant(_find),
    condition="the equivalence check failed, and not every run of the variant did, too",
    source="an unchecked variant may compute something else",
    advice=advise("Read the log in equivalence/, then run the workflow again."),
    counter_check="Run the check's command by hand.",
)
