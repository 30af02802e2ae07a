import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

from steptrace.errors import RecordError, ReportError
from steptrace.report import notebook
from steptrace.report.notebook import find_notebook, render_index, render_study, without_empty_sections

MakeStudy = Callable[[str], Path]

SOURCES = str(Path(notebook.__file__).parents[2])

#: Whatever makes a browser fetch something: none of it may point outside the file.
LOADS = re.compile(
    r"""(?:(?<!-)\bsrc|\bsrcset|<link[^>]*\bhref|@import|url)\s*[=(]?\s*["']?(?!data:|#)[\w./:]+""", re.IGNORECASE
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


def test_the_index_links_to_every_study(pages: dict[str, Path]) -> None:
    page = pages["index"].read_text(encoding="utf-8")
    assert '<a href="masked_loss.html">Losses that break</a>' in page
    assert "<code>ignore_index</code> is 1.18× faster" in page
    assert 'href="results/traces/mine/report.html"' in page


@pytest.fixture
def own_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Gives the working folder a notebook of these cells, the first of which is for parameters."""

    def write(name: str, *sources: str, tags: list[str] | None = None) -> Path:
        v4 = nbformat.v4
        tagged = {"tags": ["parameters"] if tags is None else tags}
        cells = [v4.new_code_cell("", metadata=tagged), *(v4.new_code_cell(source) for source in sources)]
        path = tmp_path / "reports" / "notebooks" / f"{name}.ipynb"
        path.parent.mkdir(parents=True)
        nbformat.write(v4.new_notebook(cells=cells), path)
        monkeypatch.chdir(tmp_path)
        return path

    return write


def test_an_error_in_a_cell_names_notebook_and_cell_and_leaves_no_page(
    make_study: MakeStudy, tmp_path: Path, own_notebook: Callable[..., Path]
) -> None:
    path = own_notebook("study", "def broken():\n    return {}['no such key']\n\nbroken()")
    out = tmp_path / "study.html"
    with pytest.raises(ReportError) as caught:
        render_study(make_study("single"), out)
    message = str(caught.value)
    assert f"{path}: cell 2 failed" in message
    assert "KeyError: 'no such key'" in message
    assert "return {}['no such key']" in message
    assert 'File "study.ipynb, cell 2", line 4' in message
    assert "cells.py" not in message
    assert "COMPARISON = 'single/results/" in message
    assert not out.exists()


def test_the_script_ends_with_an_exit_code_when_a_cell_fails(
    make_study: MakeStudy, tmp_path: Path, own_notebook: Callable[..., Path]
) -> None:
    own_notebook("study", "import sys; sys.exit(0)")
    script = Path(__file__).parents[2] / "workflow/scripts/report.py"
    command = [
        sys.executable,
        str(script),
        "study",
        str(make_study("single").parent),
        "--out",
        str(tmp_path / "s.html"),
    ]
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert found.returncode == 2
    assert "cell 2 failed" in found.stderr
    assert "SystemExit: 0" in found.stderr


def test_a_page_imports_neither_pandas_nor_a_kernel(make_study: MakeStudy, tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, steptrace.report.notebook as notebook\n"
        "notebook.render_study(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))\n"
        "print([name for name in ('pandas', 'scipy', 'torch', 'ipykernel', 'IPython') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(make_study("gpu")), str(tmp_path / "s.html")]
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    assert subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout == "[]\n"


def test_the_styles_of_the_notebooks_outputs_stay_out_of_the_page(pages: dict[str, Path], page: str) -> None:
    executed = pages["study"].with_suffix(".ipynb").read_text(encoding="utf-8")
    assert "<style>.jp-OutputArea-output {" in executed
    assert ":root" not in executed
    assert "jp-OutputArea" not in page
    assert ":root" in page


def test_output_on_stderr_stays_out_of_the_page(tmp_path: Path, own_notebook: Callable[..., Path]) -> None:
    own_notebook("index", "import sys\nprint('on stdout')\nprint('on stderr', file=sys.stderr)")
    render_index([], tmp_path / "index.html")
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "on stdout" in page
    assert "on stderr" not in page


def test_a_notebook_of_ones_own_may_hold_prose_pictures_and_any_output(
    tmp_path: Path, own_notebook: Callable[..., Path]
) -> None:
    code = (
        "class Picture:\n    def _repr_png_(self):\n        return b'png'\n"
        "class Drawing:\n    def _repr_svg_(self):\n        return '<svg></svg>'\n"
        "class Words:\n    def _repr_markdown_(self):\n        return '*told*'\n"
        "class Block:\n    def _repr_html_(self):\n        return '<pre>\\n  <i>x</i>\\n</pre>'\n"
        "display(Picture(), Drawing(), Words(), Block(), '<b>', {'a': 1})"
    )
    path = own_notebook("index", code)
    made = nbformat.read(path, as_version=4)
    prose = "## A & B\n\nSome **prose** <i>here</i>.\n\n```python\ndef f():\n    return 1\n```"
    made.cells.insert(1, nbformat.v4.new_markdown_cell(prose))
    made.cells.insert(2, nbformat.v4.new_raw_cell("raw <b>"))
    nbformat.write(made, path)
    render_index([], tmp_path / "index.html")
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert '<section><h2 id="a-b">A &amp; B</h2>\n<p>Some <strong>prose</strong> <i>here</i>.</p>' in page
    assert '<img alt="" src="data:image/png;base64,cG5n">' in page
    assert "<svg></svg>" in page
    assert "<em>told</em>" in page
    assert "<pre>\n  <i>x</i>\n</pre>" in page  # preformatted text keeps its spaces
    assert re.search(r"\n(<span[^>]*></span>)?\s{4}<span", page) or "\n    return 1" in page
    assert "<pre>raw &lt;b&gt;</pre>" in page
    assert "<pre>&#39;&lt;b&gt;&#39;</pre>" in page
    assert page.count("<section") == page.count("</section>") == 1


def test_a_missing_comparison_is_an_error_before_a_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "_execute", lambda *_: pytest.fail("a cell was run"))
    with pytest.raises(RecordError, match="is missing"):
        render_study(tmp_path / "comparison.json", tmp_path / "a.html")


def test_a_notebook_without_a_parameters_cell_is_an_error(tmp_path: Path, own_notebook: Callable[..., Path]) -> None:
    own_notebook("index", tags=[])
    with pytest.raises(ReportError, match="parameters"):
        render_index([], tmp_path / "index.html")


def test_the_executed_notebook_runs_again_in_jupyter_and_goes_on_with_typed_tables(
    make_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison = make_study("gpu")
    out = tmp_path / "moved" / "reports" / "study.html"
    render_study(comparison, out)
    again = nbformat.read(out.with_suffix(".ipynb"), as_version=4)
    nbformat.validate(again)
    assert str(tmp_path) not in again.cells[0].source  # results and pages can be moved together
    built = [cell.outputs for cell in again.cells if cell.cell_type == "code"]
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", SOURCES)
    NotebookClient(again, resources={"metadata": {"path": str(out.parent)}}).execute()
    *rerun, last = [cell.outputs for cell in again.cells if cell.cell_type == "code"]
    assert [_html(outputs) for outputs in rerun] == [_html(outputs) for outputs in built[:-1]]
    assert sum(bool(_html(outputs)) for outputs in rerun) >= 10
    assert built[-1] == []  # that cell is only for a person to run
    shown = {kind for output in last for kind in output.get("data", ())}
    assert {"text/html", "image/png"} <= shown, last
    timed: Counter[str] = Counter()
    for path in comparison.parent.glob("*/run*/steps.parquet"):
        timed[path.parts[-3]] += (pd.read_parquet(path)["phase"] == "timed").sum()
    described = "".join(output["data"]["text/plain"] for output in last if "text/html" in output.get("data", {}))
    assert all(re.search(rf"^{variant} +{steps}\.0 ", described, re.MULTILINE) for variant, steps in timed.items())


def _html(outputs: list[nbformat.NotebookNode]) -> list[str]:
    return [output.data["text/html"] for output in outputs if "data" in output and "text/html" in output.data]
