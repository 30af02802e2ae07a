"""Writes a run's summary.json: the analysis of its traces, with findings."""

import logging
import shutil
from pathlib import Path

from msgspec.structs import replace

from steptrace.analysis import summarize
from steptrace.documents.base import write
from steptrace.documents.summary import Summary
from steptrace.errors import SteptraceError
from steptrace.findings import with_trace_findings
from steptrace.run_folder import read_status

TABLES = "tables"


def summarize_run(run_dir: Path, out: Path) -> None:
    """Write the summary of a run's traces to `out`, and its tables into the run's folder.

    A run without traces gets a summary without traces. If a trace cannot be read, that is logged and becomes the
    summary's `error`, since the run's step times are valid without a trace.

    Args:
        run_dir: the run's folder.
        out: the file to write.
    """
    tables = run_dir / TABLES
    _make_empty(tables)
    summary = Summary(warnings=(), traces=())
    if traces := _traces(run_dir):
        try:
            summary, _ = summarize(traces, tables=tables)
        except SteptraceError as error:
            _make_empty(tables)  # removes the tables of ranks that could be read
            summary = replace(summary, error=str(error))
            logging.getLogger(__name__).warning("%s: %s", run_dir, error)
    write(out, with_trace_findings(summary))


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def _traces(run_dir: Path) -> list[Path]:
    """The traces of a run that succeeded; empty for a failed one."""
    traces = sorted(run_dir.glob("trace*.json.gz"))
    return traces if traces and read_status(run_dir).status == "ok" else []
