"""The notebook beside a study's page: a person's own cells on the study, run when the notebook is made.

It loads the study by `steptrace.load_study`, shows tables as DataFrames and plots by matplotlib. Whoever opens it in
Jupyter goes on from there. The page is made without it.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.paths import jupyter_runtime_dir
from nbconvert.preprocessors import ExecutePreprocessor
from nbformat import NotebookNode, v4

from steptrace.documents.base import read
from steptrace.documents.comparison import Comparison
from steptrace.files import scratch_folder, write_text

#: The name of the Python kernel in every installation of Jupyter.
_KERNEL: Final = "python3"
#: The time limit of a cell, against a kernel that hangs.
_LONGEST_S: Final = 600


class NotebookError(Exception):
    """The notebook could not be run to its end."""


def write_notebook(comparison: Path, out: Path) -> None:
    """Write a study's notebook, with the outputs of its cells.

    Args:
        comparison: the study's comparison.json; the runs' steps.parquet lie beside it.
        out: the notebook (.ipynb). Its cells find `comparison` from its folder, so both can be moved together.

    Raises:
        RecordError: comparison.json is missing or not what compare writes.
        NotebookError: a cell failed, or no kernel could be started. The notebook is written, with what it printed.
    """
    study = read(comparison, Comparison)
    cells = list(_cells(study, os.path.relpath(comparison.resolve().parent, out.parent.resolve())))
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"  # nbformat's own are random
    kernel = {"name": _KERNEL, "display_name": "Python 3", "language": "python"}
    notebook = v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})  # type: ignore[no-untyped-call]
    problem = None
    try:
        _run(notebook, out.parent)
    except Exception as error:  # a kernel has many ways to fail, and the cells are of use without their outputs
        problem = error
    write_text(out, nbformat.writes(notebook))  # type: ignore[no-untyped-call]
    if problem is not None:
        raise NotebookError(f"{type(problem).__name__}: {problem}") from problem


def _cells(study: Comparison, folder: str) -> Iterator[NotebookNode]:
    """The cells. Parts that the study lacks are left out, such as step times if all runs failed."""
    yield _text(f"# {study.title}\n\n{study.question}")
    yield _code("import steptrace", "", f"study = steptrace.load_study({folder!r})", "print(study)")
    if study.measured:
        yield _text("## Step times\n\nUnprofiled, in milliseconds, with 95 % intervals.")
        yield _code("study.step_times")
        yield _code("study.plot_step_times();")
    yield _text("## Syncs\n\nPer step: measured in a trace of a GPU, predicted on any machine.")
    yield _code("study.syncs")
    yield _code("study.plot_syncs();")
    yield _code("study.sync_sites")
    yield _text("## GPU utilisation\n\nIn percent, in its three senses. Without a GPU it is not measured.")
    yield _code("study.gpu_use")
    yield _code("study.plot_gpu_use();")
    if any(variant.estimates for variant in study.variants):
        yield _text("## Estimates\n\nFor GPUs that are not there: bands, never measurements.")
        yield _code("study.estimates")
    if any(run.status == "ok" for variant in study.variants for run in variant.runs):
        yield _text("## Go on from here\n\nA row per step of every run.")
        yield _code("timed = study.steps.query(\"phase == 'timed'\")", 'timed.groupby("variant").step_ms.describe()')


def _text(markdown: str) -> NotebookNode:
    cell: NotebookNode = v4.new_markdown_cell(markdown)  # type: ignore[no-untyped-call]
    return cell


def _code(*lines: str) -> NotebookNode:
    cell: NotebookNode = v4.new_code_cell("\n".join(lines))  # type: ignore[no-untyped-call]
    return cell


def _run(notebook: NotebookNode, folder: Path) -> None:
    """Run the cells in a folder, in a kernel of this Python; their outputs are put into the notebook."""
    with scratch_folder() as scratch, _environment(IPYTHONDIR=scratch, JUPYTER_RUNTIME_DIR=scratch):
        runner = ExecutePreprocessor(  # type: ignore[no-untyped-call]
            kernel_manager_class=_Kernel,
            extra_arguments=["--HistoryManager.enabled=False"],
            timeout=_LONGEST_S,
            record_timing=False,
        )
        runner.preprocess(notebook, {"metadata": {"path": str(folder)}})


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _Kernel(AsyncKernelManager):
    """A kernel of the running Python, whatever kernels the user has installed under its name.

    It is asked through sockets that are files in Jupyter's runtime folder: no port is opened.
    """

    def __init__(self, **options: Any) -> None:
        sockets = f"{jupyter_runtime_dir()}/kernel"
        super().__init__(
            **options,
            transport="ipc",
            ip=sockets,
            connection_file=f"{sockets}.json",
            kernel_spec_manager=_Kernels(),
        )


class _Kernels(KernelSpecManager):
    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:  # noqa: ARG002 - there is one
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name="Python 3", language="python")
