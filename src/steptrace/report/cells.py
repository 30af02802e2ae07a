"""The code cells of a notebook run in this process: a page takes no kernel, and a cell's error is this process' own.

As in a kernel, a cell's last expression is its result, `display` shows more, and what is printed is kept. Cells are
plain Python: IPython's `%magic` and `!command` are syntax errors here.
"""

import ast
import base64
import contextlib
import io
import linecache
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from nbformat import NotebookNode, v4

#: The tag of cells that only a person runs.
IN_JUPYTER: Final = "in-jupyter"
#: The methods by which an object shows itself to Jupyter, beside `_repr_mimebundle_`.
_REPRESENTATIONS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_latex_": "text/latex",
}


class CellError(Exception):
    """A cell failed.

    Attributes:
        number: which code cell, from 1 on.
        traceback: the error with its traceback, from the cell on.
    """

    def __init__(self, number: int, traceback: str) -> None:
        self.number, self.traceback = number, traceback
        super().__init__(f"cell {number} failed\n{traceback}")


def run_cells(notebook: NotebookNode, name: str) -> None:
    """Run a notebook's code cells in their order, in one namespace, and keep each one's outputs in it.

    Args:
        notebook: changed in place.
        name: what tracebacks call it.

    Raises:
        CellError: a cell raised an error or is not Python; the cells after it were not run.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code, start=1):
        if IN_JUPYTER in cell.metadata.get("tags", ()):
            continue
        cell.execution_count, cell.outputs = number, []
        namespace["display"] = _display_into(cell.outputs)
        streams = (contextlib.redirect_stdout(_Stream("stdout", cell.outputs)),
                   contextlib.redirect_stderr(_Stream("stderr", cell.outputs)))  # fmt: skip
        try:
            with streams[0], streams[1]:
                result = _run(cell.source, f"{name}, cell {number}", namespace)
                data = None if result is None else _shown(result)
        except (Exception, SystemExit) as error:
            raise CellError(number, _traceback_text(error)) from error
        if data is not None:
            cell.outputs.append(v4.new_output("execute_result", data=data, execution_count=number))  # type: ignore[no-untyped-call]


def _run(source: str, name: str, namespace: dict[str, Any]) -> object:
    """Run one cell; the value of its last expression, None if it ends in a statement or a semicolon."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # for tracebacks
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), namespace)
    if not isinstance(last, ast.Expr):
        return None
    value: object = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    return None if source.rstrip().endswith(";") else value


class _Stream(io.TextIOBase):
    """Keeps what is written as outputs of a cell."""

    def __init__(self, name: str, outputs: list[NotebookNode]) -> None:
        self._name, self._outputs = name, outputs

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._outputs and self._outputs[-1].get("name") == self._name:
            self._outputs[-1].text += text
        else:
            self._outputs.append(v4.new_output("stream", name=self._name, text=text))  # type: ignore[no-untyped-call]
        return len(text)


def _display_into(outputs: list[NotebookNode]) -> Callable[..., None]:
    def display(*values: object) -> None:
        """Show these values below the cell."""
        outputs.extend(v4.new_output("display_data", data=_shown(value)) for value in values)  # type: ignore[no-untyped-call]

    return display


def _shown(value: object) -> dict[str, object]:
    """A value in each form that it has, by MIME type."""
    found: dict[str, object] = {"text/plain": repr(value)}
    if not isinstance(value, type):
        for method, kind in _REPRESENTATIONS.items():
            form = getattr(value, method, lambda: None)()
            if form is not None:
                found[kind] = base64.b64encode(form).decode() if isinstance(form, bytes) else str(form)
        bundle = getattr(value, "_repr_mimebundle_", lambda: None)()
        found.update((bundle[0] if isinstance(bundle, tuple) else bundle) or {})
    return found


def _traceback_text(error: BaseException) -> str:
    """The error with its traceback, without the frames of this module."""
    found: TracebackType | None = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename == __file__:
        found = found.tb_next
    return "".join(traceback.format_exception(type(error), error, found)).strip()
