"""The report's pages: a notebook of reports/notebooks executed on its data and rendered to one self-contained file.

The notebook holds the page's order and its few sentences; its cells call steptrace.report. Whoever wants to look closer
copies it and goes on from there. The executed notebook is kept as a log, whether it got to its end or not.
"""

import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import nbconvert
import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbconvert import HTMLExporter
from nbformat import NotebookNode

from steptrace.errors import ReportError
from steptrace.report.build import load_study
from steptrace.report.markup import TEMPLATES

#: A page takes seconds; a notebook that someone extended may take longer.
CELL_TIMEOUT_S = 600
#: A unix socket's path may have 107 bytes, of which the kernel's own names take about 30.
_LONGEST_SOCKET_FOLDER = 60

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_HEADING = re.compile(r"\A## +(.+)\n?")


def render_study(comparison: Path, out: Path, log: Path) -> None:
    """Write a study's page.

    Args:
        comparison: the study's comparison.json; the runs' steps.parquet are found beside it.
        out: the page, one HTML file.
        log: the executed notebook (.ipynb), for looking closer and for errors.

    Raises:
        RecordError: comparison.json is missing or not what compare writes.
        ReportError: a cell of the notebook failed; the message holds the whole traceback.
    """
    study = load_study(comparison)  # a clear error before a kernel is started
    notebook = _execute(find_notebook("study"), {"COMPARISON": str(comparison.resolve())}, log)
    _write_page(notebook, out, title=f"{study.title} – steptrace", home="index.html")


def render_index(comparisons: Sequence[Path], out: Path, log: Path, imported: Sequence[Path] = ()) -> None:
    """Write the index of all studies.

    Args:
        comparisons: the studies' comparison.json files. A study's page is `<study>.html` beside `out`.
        out: the page, one HTML file.
        log: the executed notebook (.ipynb).
        imported: summary.json files of imported traces. Their page is the report.html beside each.

    Raises:
        RecordError: a comparison or a summary is missing or not what steptrace writes.
        ReportError: a cell of the notebook failed.
    """
    parameters = {
        "COMPARISONS": [str(path.resolve()) for path in comparisons],
        "IMPORTED": [str(path.resolve()) for path in imported],
        "PAGES": str(out.resolve().parent),
    }
    _write_page(_execute(find_notebook("index"), parameters, log), out, title="steptrace", home=None)


def find_notebook(name: str) -> Path:
    """`reports/notebooks/<name>.ipynb` of the working folder, else of the checkout that steptrace is installed from.

    Raises:
        ReportError: there is none.
    """
    relative = Path("reports") / "notebooks" / f"{name}.ipynb"
    checkout = Path(__file__).resolve().parents[3]
    for root in (Path.cwd(), checkout):
        if (root / relative).is_file():
            return root / relative
    raise ReportError("notebook of the report is missing", where=relative, next_step="run this in a steptrace checkout")


class _OwnKernelManager(AsyncKernelManager):
    """Starts this interpreter's ipykernel whatever kernels are installed, over unix sockets instead of TCP ports."""

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(
            argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], language="python"
        )


def _execute(path: Path, parameters: Mapping[str, object], log: Path) -> NotebookNode:
    """Run a notebook with these parameters; write it to `log` with its outputs, even if a cell fails."""
    notebook: NotebookNode = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    _set_parameters(notebook, parameters, path)
    with tempfile.TemporaryDirectory(prefix="steptrace-", dir=_short_temporary_folder()) as folder:
        client = NotebookClient(notebook, timeout=CELL_TIMEOUT_S, resources={"metadata": {"path": str(path.parent)}})
        client.km = _OwnKernelManager(transport="ipc", connection_file=str(Path(folder) / "kernel.json"))
        client.owns_km = True
        # A profile of the person's own IPython must not change a page, and figures need no display.
        environment = {**os.environ, "IPYTHONDIR": folder, "MPLBACKEND": "agg"}
        try:
            client.execute(env=environment)
        except CellExecutionError as error:
            raise ReportError(
                f"a cell failed\n{_ANSI.sub('', str(error)).strip()}", where=path, next_step=f"look into {log}"
            ) from None
        except DeadKernelError:
            raise ReportError("the kernel died", where=path, next_step=f"look into {log}") from None
        finally:
            log.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(notebook, log)  # type: ignore[no-untyped-call]
    return notebook


def _short_temporary_folder() -> str | None:
    """The folder for sockets: the usual temporary one unless its path is too long for a socket."""
    too_long = len(tempfile.gettempdir()) > _LONGEST_SOCKET_FOLDER
    return "/tmp" if too_long and Path("/tmp").is_dir() else None


def _set_parameters(notebook: NotebookNode, parameters: Mapping[str, object], path: Path) -> None:
    for cell in notebook.cells:
        if cell.cell_type == "code" and "parameters" in cell.metadata.get("tags", ()):
            cell.source = "\n".join(f"{name} = {value!r}" for name, value in parameters.items())
            return
    raise ReportError("no cell is tagged `parameters`", where=path, expected="a first cell that names the data")


def _write_page(notebook: NotebookNode, out: Path, *, title: str, home: str | None) -> None:
    """Render an executed notebook with steptrace's template: cells become sections, code is left out."""
    toc = _mark_sections(notebook)
    folders = [str(TEMPLATES), *_templates_beside_nbconvert()]
    exporter = HTMLExporter(  # type: ignore[no-untyped-call]
        template_name="steptrace",
        extra_template_basedirs=folders,
        extra_loaders=[jinja2.FileSystemLoader(folders)],
        exclude_anchor_links=True,
    )
    resources: dict[str, Any] = {"title": title, "toc": toc, "home": home}
    html, _ = exporter.from_notebook_node(notebook, resources=resources)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".part")
    partial.write_text(html, encoding="utf-8")
    partial.replace(out)  # never half a page


def _templates_beside_nbconvert() -> list[str]:
    """Where nbconvert's own templates are after `pip install --target`: in no folder that it looks into."""
    folder = Path(nbconvert.__file__).parents[1] / "share" / "jupyter" / "nbconvert" / "templates"
    return [str(folder)] if folder.is_dir() else []


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
