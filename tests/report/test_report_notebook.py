import json
import re
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from steptrace.errors import RecordError, ReportError
from steptrace.report import notebook
from steptrace.report.notebook import find_notebook, render_index, render_study, without_empty_sections

MakeStudy = Callable[[str], Path]

#: Whatever makes a browser fetch something: none of it may point outside the file.
LOADS = re.compile(
    r"""(?:\bsrc|\bsrcset|<link[^>]*\bhref|@import|url)\s*[=(]?\s*["']?(?!data:|#)[\w./:]+""", re.IGNORECASE
)


def body_of(page: str) -> str:
    return re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)


@pytest.fixture(scope="session")
def page(pages: dict[str, Path]) -> str:
    return pages["study"].read_text(encoding="utf-8")


def test_a_study_becomes_one_small_page(page: str) -> None:
    assert page.startswith("<!DOCTYPE html>")
    assert "<title>Losses that break – steptrace</title>" in page
    assert len(page) < 900_000


def test_a_page_loads_nothing_from_elsewhere(page: str) -> None:
    assert "http://" not in page
    assert "https://" not in page
    assert not LOADS.findall(body_of(page))
    assert "mathjax" not in page.lower()
    assert "require" not in page.lower()


def test_a_page_shows_no_code_of_its_notebook(page: str) -> None:
    assert "load_study" not in page
    assert "In&nbsp;[" not in page


def test_every_heading_of_the_notebook_with_something_below_is_a_section_and_in_the_contents(page: str) -> None:
    cells = nbformat.read(find_notebook("study"), as_version=4).cells
    headings = [cell.source.splitlines()[0].removeprefix("## ") for cell in cells if cell.cell_type == "markdown"]
    assert len(headings) >= 11
    headings = [heading for heading in headings if f">{heading}</h2>" in page]
    assert len(headings) >= 11  # a section with nothing to show is left out whole
    for heading in headings:
        section = heading.lower().replace(" ", "-")
        assert f'<h2 id="{section}">{heading}</h2>' in page
        assert f'<a href="#{section}">{heading}</a>' in page
    assert page.count("<section") == page.count("</section>") == len(headings)


def test_a_section_whose_code_shows_nothing_is_left_out() -> None:
    v4 = nbformat.v4
    shown = v4.new_code_cell("1", outputs=[v4.new_output("execute_result", data={"text/plain": "1"})])
    cells = [v4.new_markdown_cell("## Kept"), shown, v4.new_markdown_cell("## Empty"), v4.new_code_cell("None")]
    kept = [cell.source for cell in without_empty_sections(cells)]
    assert kept == ["## Kept", "1"]


def test_the_committed_notebooks_hold_no_outputs() -> None:
    for name in ("study", "index"):
        raw = json.loads(find_notebook(name).read_text(encoding="utf-8"))
        code = [cell for cell in raw["cells"] if cell["cell_type"] == "code"]
        assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_the_executed_notebook_is_kept(pages: dict[str, Path]) -> None:
    kept = nbformat.read(pages["study"].with_suffix(".ipynb"), as_version=4)
    assert "COMPARISON = " in kept.cells[0].source
    assert any(cell.get("outputs") for cell in kept.cells)


def test_the_index_links_to_every_study(pages: dict[str, Path]) -> None:
    page = pages["index"].read_text(encoding="utf-8")
    assert '<a href="masked_loss.html">Losses that break</a>' in page
    assert "<code>ignore_index</code> is 1.18× faster" in page
    assert 'href="results/traces/mine/report.html"' in page


def test_a_failing_cell_gives_the_whole_error_and_keeps_the_notebook(
    make_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [
        nbformat.v4.new_code_cell("COMPARISON = ''", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell("def broken():\n    return {}['no such key']\n\nbroken()"),
    ]
    for cell in cells:
        cell["id"] = f"cell-{cells.index(cell)}"
    folder = tmp_path / "reports" / "notebooks"
    folder.mkdir(parents=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "study.ipynb")
    monkeypatch.chdir(tmp_path)
    log, out = tmp_path / "logs" / "study.ipynb", tmp_path / "study.html"
    with pytest.raises(ReportError) as caught:
        render_study(make_study("single"), out, log)
    message = str(caught.value)
    assert "KeyError: 'no such key'" in message
    assert "return {}['no such key']" in message
    assert "\x1b" not in message
    assert str(log) in message
    assert not out.exists()
    outputs = nbformat.read(log, as_version=4).cells[1].outputs
    assert outputs[0].ename == "KeyError"


def test_a_librarys_remarks_stay_out_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [
        nbformat.v4.new_code_cell("", id="a", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell("import sys\nprint('my own words')\nprint('a remark', file=sys.stderr)", id="b"),
    ]
    folder = tmp_path / "reports" / "notebooks"
    folder.mkdir(parents=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "index.ipynb")
    monkeypatch.chdir(tmp_path)
    render_index([], tmp_path / "index.html", tmp_path / "index.ipynb")
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "my own words" in page
    assert "a remark" not in page
    assert "a remark" in (tmp_path / "index.ipynb").read_text(encoding="utf-8")


def test_a_missing_comparison_is_told_before_a_kernel_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "_execute", lambda *_: pytest.fail("a kernel was started"))
    with pytest.raises(RecordError, match="does not exist"):
        render_study(tmp_path / "comparison.json", tmp_path / "a.html", tmp_path / "a.ipynb")


def test_a_notebook_without_a_parameters_cell_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "reports" / "notebooks"
    folder.mkdir(parents=True)
    nbformat.write(nbformat.v4.new_notebook(), folder / "index.ipynb")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ReportError, match="parameters"):
        render_index([], tmp_path / "index.html", tmp_path / "index.ipynb")


def test_nbconverts_templates_are_found_after_an_installation_into_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbconvert.__file__", str(tmp_path / "nbconvert" / "__init__.py"))
    assert notebook._templates_beside_nbconvert() == []
    templates = tmp_path / "share" / "jupyter" / "nbconvert" / "templates"
    templates.mkdir(parents=True)
    assert notebook._templates_beside_nbconvert() == [str(templates)]
