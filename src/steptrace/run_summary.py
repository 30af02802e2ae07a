"""A run's summary.json: what its traces say, with findings."""

import logging
from pathlib import Path

from msgspec.structs import replace

from steptrace.analysis import SCHEMA_VERSION, summarize, write_tables
from steptrace.analysis.excerpt import excerpt_of_run
from steptrace.documents.base import write
from steptrace.documents.summary import Summary
from steptrace.errors import SteptraceError
from steptrace.findings import with_trace_findings
from steptrace.record import read_status

TABLES = "tables"


def summarize_run(run_dir: Path, out: Path) -> None:
    """Write the summary of a run's traces to `out` and its tables beside them; without traces if the run left none.

    The first repeat gets an excerpt, too: one a variant is what a page names. A trace that cannot be read is a warning
    and the summary's `error`: step times count without a trace.
    """
    (run_dir / TABLES).mkdir(exist_ok=True)
    summary = Summary(schema_version=SCHEMA_VERSION, warnings=(), traces=())
    traces = sorted(run_dir.glob("trace*.json.gz"))
    if traces and read_status(run_dir).status == "ok":
        try:
            summary, analyses = summarize(traces)
            write_tables(analyses, run_dir / TABLES)
            if run_dir.name == "run0":
                summary = replace(summary, trace_excerpt=excerpt_of_run(analyses[0].path, run_dir / TABLES))
        except SteptraceError as error:
            summary = replace(summary, error=str(error))
            logging.getLogger(__name__).warning("%s: %s", run_dir, error)
    write(out, with_trace_findings(summary))
