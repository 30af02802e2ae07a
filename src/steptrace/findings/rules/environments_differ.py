"""The runs of a study were made in different environments."""

from collections.abc import Iterator
from typing import Annotated, Final

from steptrace.documents.base import field
from steptrace.documents.comparison import Comparison
from steptrace.findings.rule import BaseFigures, Match, Rule, Words, advise


class Figures(BaseFigures, frozen=True, kw_only=True):
    """What differs."""

    values: Annotated[
        dict[str, tuple[str | int | bool | None, ...]], field("By key of the environment, the values that there are.")
    ]


def _find(study: Comparison) -> Iterator[Match[Figures]]:
    if study.environments_differ:
        yield Match(severity="warning", figures=Figures(values=study.environments_differ))


def _words(figures: Figures) -> Words:
    return Words(
        f"the runs' environments differ: {', '.join(figures.values)}",
        tuple(
            f"{key}: {', '.join('none' if value is None else str(value) for value in values)}"
            for key, values in figures.values.items()
        ),
    )


RULE: Final = Rule(
    name="environments_differ",
    topic="method",
    figures=Figures,
    words=_words,
    in_study=_find,
    condition="a key of the environment has more than one value among the measured runs",
    source="a comparison holds for one machine and one set of versions",
    advice=advise("Run the whole study again in one environment."),
    counter_check="Compare the runs' `run.json`: a key that cannot change the speed does not matter.",
)
