"""The report's pages: a study's as a notebook with its outputs, of which nbconvert makes one self-contained file.

The notebook lies beside the page. It opens in Jupyter, where each cell can be run again on results/.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from nbconvert import Exporter
from nbformat import NotebookNode, v4

from steptrace.documents.comparison import Comparison
from steptrace.documents.subject import Subject
from steptrace.files import write_text
from steptrace.findings.estimated import leads
from steptrace.report import study as sections
from steptrace.report.page.markup import Html, notebook_styles, page, render
from steptrace.report.study import load_study


class Section(NamedTuple):
    """A section of a study's page: its heading, the code of its cell, and what makes it; None is left out."""

    heading: str
    code: str
    make: Callable[[Comparison, Path], Html | None]


def _of_study(heading: str, make: Callable[[Comparison], Html | None]) -> Section:
    return Section(heading, f"sections.{make.__name__}(study)", lambda study, _: make(study))


def _of_subject(subject: Subject) -> Section:
    code = f"sections.subject(study, {subject.name!r})"
    return Section(subject.heading, code, lambda study, _: sections.subject(study, subject.name))


#: What a reader needs, in this order.
FIRST: Final = (_of_study("Findings", sections.all_findings), _of_study("Syncs", sections.syncs))
_TIMES: Final = Section("Step times", "sections.step_times(study, COMPARISON)", sections.step_times)
_PROVENANCE: Final = Section("Provenance", "sections.provenance(study, COMPARISON)", sections.provenance)
_VARIANTS: Final = _of_study("Variants", sections.variants)
#: The rest, folded.
MORE: Final = (
    *map(_of_subject, sections.subjects()),
    _of_study("Method", sections.method),
)
_READ: Final = """\
from steptrace.report import study as sections
from steptrace.report.study import load_study

study = load_study(COMPARISON)
sections.first_screen(study)"""
#: What a person may go on with; it has no output.
_GO_ON: Final = """\
from pathlib import Path

import pandas as pd
from steptrace.documents.run import StepOfRun
from steptrace.documents.table import validate

runs = sorted(Path(COMPARISON).parent.glob("*/run*/steps.parquet"))
tables = {run.parts[-3:-1]: validate(pd.read_parquet(run), StepOfRun) for run in runs}
steps = pd.concat(tables, names=["variant", "run"])
timed = steps[steps.phase == "timed"].assign(step_ms=lambda steps: steps.step_ns / 1e6)
timed.groupby("variant").step_ms.describe()"""


def render_study(comparison: Path, out: Path) -> None:
    """Write a study's page, and beside it the notebook (.ipynb) that it is made of.

    Args:
        comparison: the study's comparison.json; the runs' steps.parquet lie beside it.
        out: the page, one HTML file.

    Raises:
        RecordError: comparison.json is missing or not what compare writes.
    """
    study = load_study(comparison)
    notebook = v4.new_notebook(cells=list(_cells(study, comparison, out)))  # type: ignore[no-untyped-call]
    write_text(out.with_suffix(".ipynb"), v4.writes(notebook))  # type: ignore[no-untyped-call]
    exporter = PageExporter(default_preprocessors=[])  # type: ignore[no-untyped-call]
    resources = {"title": f"{study.title} – steptrace", "home": "index.html"}
    write_text(out, exporter.from_notebook_node(notebook, resources)[0])


def _cells(study: Comparison, comparison: Path, out: Path) -> Iterator[NotebookNode]:
    """The notebook's cells, those of sections with their heading in the metadata and `folded` for those of `MORE`."""
    path = os.path.relpath(comparison.resolve(), out.parent.resolve())  # pages and results can be moved together
    yield _code(f"COMPARISON = {path!r}")
    yield _code(
        "from steptrace.report.page.markup import notebook_styles\n\nnotebook_styles()", notebook_styles(), skip=True
    )
    yield _code(_READ, sections.first_screen(study), first=True)
    # A CPU's times fold where a GPU's are estimated, and the variants where nothing failed.
    folds = [*([_TIMES] if leads(study) else []), *([] if sections.needs_a_look(study) else [_VARIANTS])]
    shown = [(section, False) for section in (*FIRST, _TIMES, _VARIANTS, _PROVENANCE) if section not in folds]
    for section, folded in shown + [(section, True) for section in (*folds, *MORE)]:
        made = section.make(study, comparison)
        if made is not None:
            yield v4.new_markdown_cell(f"## {section.heading}")  # type: ignore[no-untyped-call]
            yield _code(section.code, made, heading=section.heading, folded=folded)
    yield v4.new_markdown_cell("## Go on from here")  # type: ignore[no-untyped-call]
    yield _code(_GO_ON)


def _code(source: str, output: Html | None = None, **metadata: object) -> NotebookNode:
    shown = {"text/html": str(output), "text/plain": "a section of the page"}
    outputs = [v4.new_output("execute_result", data=shown)] if output is not None else []  # type: ignore[no-untyped-call]
    cell: NotebookNode = v4.new_code_cell(source, outputs=outputs, metadata={"steptrace": metadata})  # type: ignore[no-untyped-call]
    return cell


class PageExporter(Exporter):
    """nbconvert's export of such a notebook as a page: cells become sections, code is left out."""

    def from_notebook_node(  # type: ignore[override]
        self, nb: NotebookNode, resources: dict[str, Any] | None = None, **options: object
    ) -> tuple[str, dict[str, Any]]:
        """The page's HTML; `resources` holds its `title`, and as `home` the way back to the index."""
        notebook, given = super().from_notebook_node(nb, resources, **options)
        shown = [(cell.metadata.get("steptrace", {}), cell) for cell in notebook.cells if cell.get("outputs")]
        parts = [
            (what.get("heading"), what.get("folded", False), Html(cell.outputs[0].data["text/html"]))
            for what, cell in shown
            if not what.get("skip")
        ]
        toc = [(_id(heading), heading) for heading, folded, _ in parts if heading and not folded]
        toc += [("more-figures", "More figures")] if any(folded for _, folded, _ in parts) else []
        ids = {heading: _id(heading) for heading, _, _ in parts if heading}
        body = render("notebook", parts=parts, ids=ids, toc=toc)
        return page(given["title"], body, toc, given["home"]), given


def _id(heading: str) -> str:
    return heading.lower().replace(" ", "-")
