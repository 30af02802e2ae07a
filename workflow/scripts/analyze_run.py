"""analyze_run.py RUN_DIR --out FILE: the summary of a run's traces; without traces if the run left none.

The first repeat gets an excerpt, too: one a variant is what a page names.
"""

import argparse
import sys
from pathlib import Path

from msgspec.structs import replace

from steptrace.analysis import SCHEMA_VERSION, summarize, write_tables
from steptrace.analysis.excerpt import excerpt_of_run
from steptrace.documents.base import write
from steptrace.documents.summary import Summary
from steptrace.errors import SteptraceError
from steptrace.findings import with_trace_findings
from steptrace.record import read_status

parser = argparse.ArgumentParser()
parser.add_argument("run_dir", type=Path)
parser.add_argument("--out", type=Path, required=True)
options = parser.parse_args()

summary = Summary(schema_version=SCHEMA_VERSION, warnings=(), traces=())
traces = sorted(options.run_dir.glob("trace*.json.gz"))
if traces and read_status(options.run_dir).status == "ok":
    try:
        summary, analyses = summarize(traces)
        write_tables(analyses, options.run_dir / "tables")
        if options.run_dir.name == "run0":
            summary = replace(summary, trace_excerpt=excerpt_of_run(analyses[0].path, options.run_dir))
    except SteptraceError as error:  # step times count without a trace
        summary = replace(summary, error=str(error))
        print(f"warning: {error}", file=sys.stderr)
write(options.out, with_trace_findings(summary))
