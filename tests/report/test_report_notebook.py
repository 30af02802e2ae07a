import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

from steptrace.report import notebook
from steptrace.report.notebook import NotebookError, write_notebook
from steptrace.report.study_page import FIRST

SOURCES = str(Path(notebook.__file__).parents[2])

#: Whatever makes a browser fetch something: none of it may point outside the file.
LOADS = re.compile(
    r"""(?:(?<!-)\bsrc|\bsrcset|<link[^>]*\bhref|@import|url)\s*[=(]?\s*["']?(?!data:|#)[\w./:]+""", re.IGNORECASE
)


def body_of(page: str) -> str:
    return re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)


@pytest.fixture(scope="session")
def page(pages):
    return pages["study"].read_text(encoding="utf-8")


def test_a_study_becomes_one_small_page(page):
    assert page.startswith("<!DOCTYPE html>")
    assert "<title>Losses that break – steptrace</title>" in page
    assert len(page) < 900_000
    assert "load_study" not in page  # no code of its notebook
    assert "In&nbsp;[" not in page


def test_a_page_loads_nothing_from_elsewhere(page):
    assert "http://" not in page
    assert "https://" not in page
    assert not LOADS.findall(body_of(page))
    assert "mathjax" not in page.lower()
    assert "require" not in page.lower()


def test_the_first_sections_stand_open_and_the_rest_is_folded(page):
    stand_open = {heading for heading, *_ in FIRST}
    for heading in stand_open - {"What the source states"}:  # of studies whose source states figures
        section = heading.lower().replace(" ", "-")
        assert f'<h2 id="{section}">{heading}</h2>' in page
        assert f'<a href="#{section}">{heading}</a>' in page
    assert page.count("<section") == page.count("</section>")
    more = page[page.index('<h2 id="more-figures">') :]
    assert '<details class="block"><summary id="method"><b>Method</b></summary>' in more
    assert '<h2 id="variants">' in page  # something failed in it


def test_the_index_links_to_every_study(pages):
    page = pages["index"].read_text(encoding="utf-8")
    assert '<a href="masked_loss.html">Losses that break</a>' in page
    assert "<code>ignore_index</code> is 1.2× faster" in page
    assert 'href="results/traces/mine/report.html"' in page


def test_a_page_imports_neither_pandas_nor_a_kernel(make_study, tmp_path):
    code = (
        "import sys, pathlib, steptrace.report.study_page as page\n"
        "page.render_study(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))\n"
        "print([name for name in ('pandas', 'scipy', 'torch', 'ipykernel', 'nbconvert') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(make_study("gpu")), str(tmp_path / "s.html")]
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    assert subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout == "[]\n"


@pytest.fixture
def in_the_kernel(monkeypatch):
    """The kernel imports these sources."""
    monkeypatch.setenv("PYTHONPATH", SOURCES)


@pytest.mark.usefixtures("in_the_kernel")
def test_the_notebook_is_run_when_it_is_made_and_again_where_it_is_moved(make_study, tmp_path, monkeypatch):
    comparison = make_study("gpu")
    out = tmp_path / "moved" / "reports" / "study.ipynb"
    out.parent.mkdir(parents=True)
    write_notebook(comparison, out)
    assert [file.name for file in out.parent.iterdir()] == ["study.ipynb"]
    made = nbformat.read(out, as_version=4)
    nbformat.validate(made)
    assert made.metadata.kernelspec.name == "python3"
    assert str(tmp_path) not in "".join(cell.source for cell in made.cells)
    code = [cell for cell in made.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    kinds = Counter(kind for cell in code for output in cell.outputs for kind in output.get("data", ()))
    assert kinds["image/png"] == 3  # step times, syncs, GPU utilisation
    assert kinds["text/html"] >= 5  # DataFrames
    assert not any(output.output_type == "error" for cell in code for output in cell.outputs)

    timed: Counter[str] = Counter()
    for path in comparison.parent.glob("*/run*/steps.parquet"):
        timed[path.parts[-3]] += (pd.read_parquet(path)["phase"] == "timed").sum()
    described = code[-1].outputs[0].data["text/plain"]
    assert all(re.search(rf"^{variant} +{steps}\.0 ", described, re.MULTILINE) for variant, steps in timed.items())

    shown = [_tables(cell) for cell in code]
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    NotebookClient(made, resources={"metadata": {"path": str(out.parent)}}).execute()
    assert [_tables(cell) for cell in code] == shown


@pytest.mark.usefixtures("in_the_kernel")
def test_a_notebook_whose_cell_fails_is_written_with_the_error(make_study, tmp_path):
    study = tmp_path / "study"
    shutil.copytree(make_study("gpu").parent, study)
    for file in study.glob("*/run*/steps.parquet"):
        file.write_bytes(b"")
    out = tmp_path / "study.ipynb"
    with pytest.raises(NotebookError):
        write_notebook(study / "comparison.json", out)
    outputs = [output for cell in nbformat.read(out, as_version=4).cells for output in cell.get("outputs", ())]
    assert outputs[-1].output_type == "error"
    assert any("text/html" in output.get("data", ()) for output in outputs)


def _tables(cell: nbformat.NotebookNode) -> list[str]:
    return [output.data["text/html"] for output in cell.outputs if "text/html" in output.get("data", ())]
