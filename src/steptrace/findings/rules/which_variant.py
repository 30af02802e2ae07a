"""A study's answer: which variant to use."""

from collections.abc import Iterator
from typing import Annotated, Final

from steptrace.documents.answer import Answer
from steptrace.documents.base import field
from steptrace.documents.comparison import Comparison
from steptrace.documents.finding import ANSWER
from steptrace.findings.answer import answer_of
from steptrace.findings.rule import BaseFigures, Match, Rule, Words, advise
from steptrace.words.answer import advice_in_words, sentence_of


class Figures(BaseFigures, frozen=True, kw_only=True):
    """The answer of the study."""

    answer: Annotated[Answer, field("The answer, as facts: which variant, by how much, why, and what to do.")]


def _find(study: Comparison) -> Iterator[Match[Figures]]:
    answer = answer_of(study)
    if len(study.variants) > 1 and answer.advice.to_do != "no_advice":
        yield Match(severity="info", figures=Figures(answer=answer), variant=answer.use)


def _words(figures: Figures) -> Words:
    return Words(sentence_of(figures.answer), advice=advice_in_words(figures.answer.advice))


RULE: Final = Rule(
    name=ANSWER,
    topic="answer",
    figures=Figures,
    words=_words,
    in_study=_find,
    condition="a study has more than one variant: the simplest of those that are faster than the baseline, about as "
    "fast as the fastest, and not found to compute something else; if there is none, the baseline",
    source="the verdicts of the study itself: see docs/methods.md",
    advice=advise("Use the fastest variant that computes the same."),
    counter_check="Time the change in your own training: a ratio holds for this model, batch size and machine.",
)
