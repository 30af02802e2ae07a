"""steptrace in Python: traces and studies as objects with pandas DataFrames, for notebooks and scripts.

    import steptrace

    trace = steptrace.load_trace("trace.json.gz")      # or a folder of ranks
    trace.syncs, trace.kernels, trace.idle, trace.steps
    trace.summary.findings

    study = steptrace.load_study("results/giou")
    study.step_times, study.syncs, study.estimates
    study.plot_step_times()

Times in DataFrames are integer nanoseconds (`_ns`), or milliseconds (`_ms`) of studies. What was not measured is null.
docs/reference/python.md lists all names; it is made from the docstrings here.
"""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from steptrace.documents.base import read
from steptrace.documents.comparison import Comparison
from steptrace.library.study import ROWS_OF_STUDY, LoadedStudy
from steptrace.library.trace import TABLE_OF, LoadedTrace
from steptrace.words.notes import note_text

__all__ = ["ROWS_OF_STUDY", "TABLE_OF", "LoadedStudy", "LoadedTrace", "load_study", "load_trace"]

_PathLike = str | os.PathLike[str]
_COMPARISON: Final = "comparison.json"


def load_trace(path: _PathLike | Sequence[_PathLike]) -> LoadedTrace:
    """Read one trace, or the traces of one job's ranks.

    Args:
        path: a trace file of PyTorch's profiler (.json, .json.gz), a folder of them, or several of either.

    Returns:
        What they say. Reading takes as long as `steptrace analyze` without its page.

    Warns:
        UserWarning: a damaged trace in a folder, which was not read. `document.warnings` has it and whatever else is
            to know of the traces together, `summary.quality.warnings` what is to know of one.

    Raises:
        TraceError: a path is missing, or a trace cannot be read that was named, or that is a folder's only one.

    Example:
        trace = steptrace.load_trace("trace.json.gz")
        trace.syncs.groupby(["file", "line"]).blocked_ns.sum()
    """
    from steptrace.analysis import summarize
    from steptrace.findings import with_trace_findings

    paths = [path] if isinstance(path, str | os.PathLike) else list(path)
    document, traces = summarize([Path(path) for path in paths])
    for note in document.notes:
        if note.code == "trace_not_read":
            warnings.warn(note_text(note), stacklevel=2)
    return LoadedTrace(with_trace_findings(document), traces)


def load_study(path: _PathLike) -> LoadedStudy:
    """Read the results of a study.

    Args:
        path: the study's folder in results/, or its comparison.json.

    Raises:
        RecordError: there is no comparison.json, or one of another version of steptrace.

    Example:
        steptrace.load_study("results/giou").step_times
    """
    file = Path(path)
    if file.is_dir():
        file = file / _COMPARISON
    return LoadedStudy(read(file, Comparison, next_step="run the study: snakemake --cores all"), file.parent)
