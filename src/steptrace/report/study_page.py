"""A study's page: its sections in the order in which a reader needs them, in one self-contained HTML file."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from steptrace.documents.comparison import Comparison
from steptrace.documents.subject import Subject
from steptrace.files import write_text
from steptrace.report import study as sections
from steptrace.report.page.markup import Html, page, render
from steptrace.report.study import load_study
from steptrace.report.study.matrix import with_shown_names


class Section(NamedTuple):
    """A section of a study's page: its heading, and what makes it; None is left out."""

    heading: str
    make: Callable[[Comparison, Path], Html | None]


def _of_study(heading: str, make: Callable[[Comparison], Html | None]) -> Section:
    return Section(heading, lambda study, _: make(study))


def _of_subject(subject: Subject) -> Section:
    return Section(subject.heading, lambda study, _: sections.subject_section(study, subject.name))


#: What a reader needs, in this order.
FIRST: Final = (
    _of_study("Findings", sections.all_findings),
    _of_study("Syncs", sections.syncs),
    _of_study("What the source states", sections.claims),
)
_TIMES: Final = Section("Step times", sections.step_times)
_PROVENANCE: Final = Section("Provenance", sections.provenance)
_VARIANTS: Final = _of_study("Variants", sections.variants)
#: The rest, folded.
MORE: Final = (
    *map(_of_subject, sections.subjects()),
    _of_study("Method", sections.method),
)


class _Made(NamedTuple):
    """A section that was made; `folded`: whether it is closed at first, since few readers need it."""

    heading: str
    folded: bool
    html: Html


def render_study(comparison: Path, out: Path) -> None:
    """Write a study's page.

    Args:
        comparison: the study's comparison.json; the runs' steps.parquet lie beside it.
        out: the page, one HTML file.

    Raises:
        RecordError: comparison.json is missing or not what compare writes.
    """
    study = with_shown_names(load_study(comparison))
    parts = list(_sections(study, comparison))
    toc = [(_id(part.heading), part.heading) for part in parts if not part.folded]
    toc += [("more-figures", "More figures")] if any(part.folded for part in parts) else []
    ids = {part.heading: _id(part.heading) for part in parts}
    body = render("study_page", first=sections.first_screen(study), parts=parts, ids=ids, toc=toc)
    write_text(out, page(f"{study.title} – steptrace", body, toc, "index.html"))


def _sections(study: Comparison, comparison: Path) -> Iterator[_Made]:
    """The sections; all are folded but those that most readers need, and the variants if something failed."""
    looked_at = [_VARIANTS] if sections.needs_a_look(study) else []
    folded = [_TIMES, *([] if looked_at else [_VARIANTS]), *MORE, _PROVENANCE]
    for section in (*FIRST, *looked_at, *folded):
        html = section.make(study, comparison)
        if html is not None:
            yield _Made(section.heading, section in folded, html)


def _id(heading: str) -> str:
    return heading.lower().replace(" ", "-")
