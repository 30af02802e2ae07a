"""gpu_results.py FOLDER ... --out docs/gpu-results.md: the results of some machines as a page of tables."""

import argparse
import sys
from pathlib import Path

from steptrace.errors import SteptraceError
from steptrace.reference.document import render

parser = argparse.ArgumentParser()
parser.add_argument("folders", type=Path, nargs="+")
parser.add_argument("--out", type=Path, required=True)
options = parser.parse_args()
try:
    options.out.write_text(render(options.folders), encoding="utf-8")
except SteptraceError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
