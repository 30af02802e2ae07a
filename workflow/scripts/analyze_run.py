"""analyze_run.py [--by-rank] RUN_DIR...: each run's summary.json, of its traces; without traces if the run left none.

With --by-rank each rank has been analysed already, by analyze_rank.py.
"""

import argparse
import sys
from pathlib import Path

from steptrace.errors import SteptraceError
from steptrace.run_summary import summarize_run

parser = argparse.ArgumentParser()
parser.add_argument("run_dirs", type=Path, nargs="+")
parser.add_argument("--by-rank", action="store_true")
options = parser.parse_args()
try:
    for run_dir in options.run_dirs:
        summarize_run(run_dir, run_dir / "summary.json", by_rank=options.by_rank)
except SteptraceError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
