"""analyze_run.py RUN_DIR --out FILE: the summary of a run's traces; without traces if the run left none."""

import argparse
import sys
from pathlib import Path

from steptrace.errors import SteptraceError
from steptrace.run_summary import summarize_run

parser = argparse.ArgumentParser()
parser.add_argument("run_dir", type=Path)
parser.add_argument("--out", type=Path, required=True)
options = parser.parse_args()
try:
    summarize_run(options.run_dir, options.out)
except SteptraceError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
