"""Exceptions for single subjects on a study's page, which otherwise shows the columns of their rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from steptrace.documents.base import Document
from steptrace.documents.comparison import Comparison
from steptrace.documents.subject import names_of_subjects
from steptrace.documents.summary import TraceSummary
from steptrace.documents.variant import VariantResult
from steptrace.report.page.markup import Html


@dataclass(frozen=True)
class VariantFigures:
    """A document of each variant, and the columns to show; by default all that have a heading."""

    document: Callable[[VariantResult], Document | None]
    names: Sequence[str] = ()


@dataclass(frozen=True)
class StudyView:
    """The exception of one subject.

    Attributes:
        figures: documents of a variant that are shown in place of its trace's rows or figures.
        decides_nothing: whether the subject decides nothing between the variants of a study; it is left out then.
        lead: a sentence above the table; empty without one.
        below: what stands below the table.
    """

    figures: Sequence[VariantFigures] = ()
    decides_nothing: Callable[[Comparison], bool] = lambda study: False  # noqa: ARG005 - its name is its meaning
    lead: Callable[[Comparison], str] = lambda study: ""  # noqa: ARG005
    below: Callable[[Comparison], Html] = lambda study: Html("")  # noqa: ARG005


#: What a study's page does with a subject that has no exception.
PLAIN: Final = StudyView()


def views_of(views: dict[str, StudyView]) -> dict[str, StudyView]:
    """The exceptions by the name of their subject.

    Raises:
        ValueError: there is no such subject.
    """
    if unknown := views.keys() - names_of_subjects(TraceSummary):
        raise ValueError(f"there is no subject {', '.join(sorted(unknown))}")
    return views
