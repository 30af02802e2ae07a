"""analyze_run.py RUN_DIR...: each run's summary.json, of its traces; without traces if the run left none."""

import argparse
import sys
from pathlib import Path

from steptrace.errors import SteptraceError
from steptrace.workflow.run_summary import summarize_run

parser = argparse.ArgumentParser()
parser.add_argument("run_dirs", type=Path, nargs="+")
options = parser.parse_args()
try:
    for run_dir in options.run_dirs:
        summarize_run(run_dir, run_dir / "summary.json")
except SteptraceError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
