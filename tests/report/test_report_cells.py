"""Cells run in this process: what they show, print and raise is kept as a kernel would keep it."""

import nbformat
import pytest

from steptrace.report.cells import CellError, run_cells


def run(*sources: str) -> list[list[nbformat.NotebookNode]]:
    """The outputs of each cell, in a notebook that Jupyter accepts."""
    v4 = nbformat.v4
    notebook = v4.new_notebook(cells=[v4.new_markdown_cell("# Text"), *(v4.new_code_cell(text) for text in sources)])
    run_cells(notebook, "own.ipynb")
    nbformat.validate(notebook)
    return [cell.outputs for cell in notebook.cells[1:]]


def test_the_value_of_the_last_expression_is_the_result() -> None:
    (number,), assigned, silenced, nothing = run("x = 2\nx + 1", "x = 5", "x;", "None")
    assert (number.output_type, number.data, number.execution_count) == ("execute_result", {"text/plain": "3"}, 1)
    assert assigned == silenced == nothing == []


def test_an_object_is_kept_in_every_form_it_has() -> None:
    source = (
        "class Rich:\n"
        "    def _repr_html_(self): return '<b>x</b>'\n"
        "    def _repr_png_(self): return b'png'\n"
        "    def _repr_svg_(self): return None\n"
        "    def __repr__(self): return 'rich'\n"
        "class Bundle:\n"
        "    def _repr_mimebundle_(self): return {'text/markdown': '*x*'}, {}\n"
        "    def __repr__(self): return 'bundle'\n"
        "display(Rich(), Bundle())\nRich"
    )
    ((rich, bundle, of_a_class),) = run(source)
    assert rich.output_type == "display_data"
    assert rich.data == {"text/plain": "rich", "text/html": "<b>x</b>", "image/png": "cG5n"}
    assert bundle.data == {"text/plain": "bundle", "text/markdown": "*x*"}
    assert list(of_a_class.data) == ["text/plain"]


def test_printed_text_is_kept_in_its_order_and_by_its_stream() -> None:
    source = "import sys\nprint(1)\nprint(2)\nprint(3, file=sys.stderr)\nprint(4)\n5"
    ((first, second, third, result),) = run(source)
    assert [(part.name, part.text) for part in (first, second, third)] == [
        ("stdout", "1\n2\n"),
        ("stderr", "3\n"),
        ("stdout", "4\n"),
    ]
    assert result.data == {"text/plain": "5"}


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("%matplotlib inline", "SyntaxError: invalid syntax"),
        ("class A:\n    def _repr_html_(self): raise ValueError('no form')\nA()", "ValueError: no form"),
    ],
)
def test_an_error_names_its_cell_and_ends_the_run(source: str, told: str) -> None:
    with pytest.raises(CellError) as caught:
        run("x = 1", source, "raise AssertionError('not run')")
    assert caught.value.number == 2
    assert told in caught.value.traceback
    assert "own.ipynb, cell 2" in caught.value.traceback
    assert "report/cells.py" not in caught.value.traceback
