"""verdict.py write COMPARISON... --gates JSON --out FILE | verdict.py enforce FILE"""

import argparse
import json
import sys
from pathlib import Path

from steptrace.documents.base import read, write
from steptrace.documents.comparison import Comparison
from steptrace.documents.verdict import Verdict
from steptrace.errors import SteptraceError
from steptrace.verdict import explain, judge

parser = argparse.ArgumentParser()
parser.add_argument("what", choices=("write", "enforce"))
parser.add_argument("files", nargs="*", type=Path)
parser.add_argument("--gates", type=json.loads, default={})
parser.add_argument("--out", type=Path)
options = parser.parse_args()

try:
    if options.what == "write":
        write(options.out, judge([read(path, Comparison) for path in options.files], options.gates))
    else:
        verdict = read(options.files[0], Verdict)
        print(explain(verdict))
        sys.exit(verdict.status != "pass")
except SteptraceError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
