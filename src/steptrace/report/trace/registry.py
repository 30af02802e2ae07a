"""The sections of a trace's page that show more than their subject's table, attached where they are written.

A subject that is a table needs no section: its table follows from its columns.
"""

from collections.abc import Callable
from functools import cache
from typing import Final

from steptrace.documents.subject import modules_in, names_of_subjects
from steptrace.documents.summary import TraceSummary
from steptrace.report.page.section import Parts
from steptrace.report.trace.view import TraceView

#: Makes the parts of a section; None if there is nothing to show.
SectionFunction = Callable[[TraceView], Parts | None]

_sections: Final[dict[str, SectionFunction]] = {}


def section_of(name: str) -> Callable[[SectionFunction], SectionFunction]:
    """Attach the function that makes the section of a subject.

    Raises:
        ValueError: there is no such subject, or it has a section already.
    """
    if name not in names_of_subjects(TraceSummary):
        raise ValueError(f"there is no subject {name!r}")
    if name in _sections:
        raise ValueError(f"two functions make the section of {name!r}")

    def attach(make: SectionFunction) -> SectionFunction:
        _sections[name] = make
        return make

    return attach


def section_for(name: str) -> SectionFunction | None:
    """The function that makes the section of a subject; None where its table is all that there is."""
    _find_sections()
    return _sections.get(name)


@cache
def _find_sections() -> None:
    """Import every module of this package, so that each attaches its sections."""
    modules_in("steptrace.report.trace")
