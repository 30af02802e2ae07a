"""report.py study STUDY_DIR --out PAGE | index COMPARISON... [--traces SUMMARY...] --out PAGE"""

import argparse
import sys
from pathlib import Path

from steptrace.errors import SteptraceError
from steptrace.report.notebook import render_index, render_study

parser = argparse.ArgumentParser()
parser.add_argument("what", choices=("study", "index"))
parser.add_argument("files", nargs="*", type=Path)
parser.add_argument("--traces", nargs="*", type=Path, default=[])
parser.add_argument("--out", type=Path, required=True)
options = parser.parse_args()

try:
    if options.what == "study":
        render_study(options.files[0] / "comparison.json", options.out)
    else:
        render_index(options.files, options.out, options.traces)
except SteptraceError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
