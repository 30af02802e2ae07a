import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

from steptrace.report import notebook
from steptrace.report.notebook import FIRST, render_study

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
    for heading, *_ in FIRST:
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
    assert "<code>ignore_index</code> is 1.18× faster" in page
    assert 'href="results/traces/mine/report.html"' in page


def test_a_page_imports_neither_pandas_nor_a_kernel(make_study, tmp_path):
    code = (
        "import sys, pathlib, steptrace.report.notebook as notebook\n"
        "notebook.render_study(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))\n"
        "print([name for name in ('pandas', 'scipy', 'torch', 'ipykernel', 'IPython') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(make_study("gpu")), str(tmp_path / "s.html")]
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    assert subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout == "[]\n"


def test_the_styles_of_the_notebooks_outputs_stay_out_of_the_page(pages, page):
    executed = pages["study"].with_suffix(".ipynb").read_text(encoding="utf-8")
    assert "<style>.jp-OutputArea-output {" in executed
    assert ":root" not in executed
    assert "jp-OutputArea" not in page
    assert ":root" in page


def test_the_executed_notebook_runs_again_in_jupyter_and_goes_on_with_typed_tables(make_study, tmp_path, monkeypatch):
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
    assert "text/html" in shown, last
    timed: Counter[str] = Counter()
    for path in comparison.parent.glob("*/run*/steps.parquet"):
        timed[path.parts[-3]] += (pd.read_parquet(path)["phase"] == "timed").sum()
    described = "".join(output["data"]["text/plain"] for output in last if "text/html" in output.get("data", {}))
    assert all(re.search(rf"^{variant} +{steps}\.0 ", described, re.MULTILINE) for variant, steps in timed.items())


def _html(outputs: list[nbformat.NotebookNode]) -> list[str]:
    return [output.data["text/html"] for output in outputs if "data" in output and "text/html" in output.data]
