"""The report's pages: a notebook of reports/notebooks executed on its data and rendered to one self-contained file.

The notebook holds the page's order and its few sentences; its cells call steptrace.report. The executed notebook of a
study lies beside its page: it opens in Jupyter and runs again on results/.
"""

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from nbconvert import Exporter
from nbconvert.filters import ansi2html
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode, v4

from steptrace.errors import ReportError
from steptrace.files import write_text
from steptrace.report.cells import IN_JUPYTER, CellError, run_cells
from steptrace.report.page.markup import page, render_as_written
from steptrace.report.study.model import load_study
from steptrace.root import ROOT

_HEADING = re.compile(r"\A## +(.+)\n?")


def render_study(comparison: Path, out: Path) -> None:
    """Write a study's page, and beside it the executed notebook (.ipynb) that it was made of.

    Args:
        comparison: the study's comparison.json; the runs' steps.parquet are found beside it.
        out: the page, one HTML file.

    Raises:
        RecordError: comparison.json is missing or not what compare writes.
        ReportError: a cell of the notebook failed; the message holds the whole traceback.
    """
    study = load_study(comparison)  # a clear error before a cell runs
    parameters = {"COMPARISON": _relative(comparison, out)}
    notebook = _execute(find_notebook("study"), parameters, out.parent)
    write_text(out.with_suffix(".ipynb"), v4.writes(notebook))  # type: ignore[no-untyped-call]
    _write_page(notebook, out, title=f"{study.title} – steptrace", home="index.html")


def render_index(comparisons: Sequence[Path], out: Path, imported: Sequence[Path] = ()) -> None:
    """Write the index of all studies.

    Args:
        comparisons: the studies' comparison.json files. A study's page is `<study>.html` beside `out`.
        out: the page, one HTML file.
        imported: summary.json files of imported traces. Their page is the report.html beside each.

    Raises:
        RecordError: a comparison or a summary is missing or not what steptrace writes.
        ReportError: a cell of the notebook failed.
    """
    parameters = {
        "COMPARISONS": [_relative(path, out) for path in comparisons],
        "IMPORTED": [_relative(path, out) for path in imported],
        "PAGES": ".",
    }
    _write_page(_execute(find_notebook("index"), parameters, out.parent), out, title="steptrace", home=None)


def _relative(path: Path, out: Path) -> str:
    """A path as seen from the page's folder: pages and results can be moved together."""
    return os.path.relpath(path.resolve(), out.parent.resolve())


def find_notebook(name: str) -> Path:
    """`reports/notebooks/<name>.ipynb` of the working folder, else the one that belongs to this steptrace.

    Raises:
        ReportError: there is none.
    """
    relative = Path("reports") / "notebooks" / f"{name}.ipynb"
    for root in (Path.cwd(), ROOT):
        if (root / relative).is_file():
            return root / relative
    raise ReportError("notebook of the report is missing", where=relative, next_step="install steptrace again")


def _execute(path: Path, parameters: Mapping[str, object], folder: Path) -> NotebookNode:
    """A notebook with these parameters and its outputs, run in the folder that Jupyter will run it in."""
    notebook: NotebookNode = v4.reads(path.read_text(encoding="utf-8"))  # type: ignore[no-untyped-call]
    _set_parameters(notebook, parameters, path)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with contextlib.chdir(folder):
            run_cells(notebook, path.name)
    except CellError as error:
        told = ", ".join(f"{name} = {value!r}" for name, value in parameters.items())
        raise ReportError(
            str(error), where=path, next_step=f"run it in Jupyter, in {folder.resolve()}, with {told}"
        ) from None
    return notebook


def _set_parameters(notebook: NotebookNode, parameters: Mapping[str, object], path: Path) -> None:
    for cell in notebook.cells:
        if cell.cell_type == "code" and "parameters" in cell.metadata.get("tags", ()):
            cell.source = "\n".join(f"{name} = {value!r}" for name, value in parameters.items())
            return
    raise ReportError("no cell is tagged `parameters`", where=path, expected="a first cell that names the data")


def _write_page(notebook: NotebookNode, out: Path, **resources: str | None) -> None:
    exporter = PageExporter(default_preprocessors=[])  # type: ignore[no-untyped-call]
    write_text(out, exporter.from_notebook_node(notebook, resources)[0])


class PageExporter(Exporter):
    """nbconvert's export of an executed notebook as a page: cells become sections, code is left out."""

    def from_notebook_node(  # type: ignore[override]
        self, nb: NotebookNode, resources: dict[str, Any] | None = None, **options: object
    ) -> tuple[str, dict[str, Any]]:
        """The page's HTML; `resources` holds its `title`, and as `home` the way back to the index."""
        notebook, given = super().from_notebook_node(nb, resources, **options)
        left_out = {"notebook-only", IN_JUPYTER}
        notebook.cells = [cell for cell in notebook.cells if left_out.isdisjoint(cell.metadata.get("tags", ()))]
        toc = _mark_sections(notebook)
        body = render_as_written("notebook", cells=notebook.cells, toc=toc, ansi2html=ansi2html, markdown=_markdown)
        return page(given["title"], body, toc, given["home"]), given


def _markdown(text: str) -> Markup:
    return Markup(MarkdownWithMath(renderer=IPythonRenderer(escape=False, exclude_anchor_links=True)).render(text))


def _mark_sections(notebook: NotebookNode) -> list[tuple[str, str]]:
    """Move each "## Heading" from a cell's text to its metadata; return (id, heading) of all.

    A section whose code shows nothing, since the study has nothing of that kind, is left out.
    """
    toc = []
    notebook.cells = without_empty_sections(notebook.cells)
    for cell in notebook.cells:
        match = _HEADING.match(cell.source) if cell.cell_type == "markdown" else None
        if match:
            heading = match.group(1).strip()
            section = re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")
            cell.metadata["section"], cell.metadata["heading"] = section, heading
            cell.source = cell.source[match.end() :].strip()
            toc.append((section, heading))
    return toc


def without_empty_sections(cells: Sequence[NotebookNode]) -> list[NotebookNode]:
    """The cells without headings, whose text is nothing but the heading, that only code without output follows."""
    kept: list[NotebookNode] = []
    for cell in cells:
        if cell.cell_type == "code" and not cell.get("outputs") and kept and _is_heading(kept[-1]):
            kept.pop()
        else:
            kept.append(cell)
    return kept


def _is_heading(cell: NotebookNode) -> bool:
    return cell.cell_type == "markdown" and re.fullmatch(r"## +.+\s*", cell.source) is not None
