"""verdict.py write COMPARISON... --gates JSON --out FILE [--summary MD] | verdict.py enforce FILE"""

import argparse
import json
import sys
from pathlib import Path

from steptrace.compare.verdict import explain, judge
from steptrace.documents.base import read, write
from steptrace.documents.comparison import Comparison
from steptrace.documents.verdict import Verdict
from steptrace.errors import SteptraceError

parser = argparse.ArgumentParser()
parser.add_argument("what", choices=("write", "enforce"))
parser.add_argument("files", nargs="*", type=Path)
parser.add_argument("--gates", type=json.loads, default={})
parser.add_argument("--out", type=Path)
parser.add_argument("--summary", type=Path)
options = parser.parse_args()

try:
    if options.what == "write":
        from steptrace.workflow import ci  # what it imports takes longer than all that `enforce` does

        comparisons = [read(path, Comparison) for path in options.files]
        verdict = judge(comparisons, options.gates)
        write(options.out, verdict)
        if options.summary:
            options.summary.write_text(ci.summary(comparisons, verdict), encoding="utf-8")
    else:
        verdict = read(options.files[0], Verdict)
        print(explain(verdict))
        sys.exit(verdict.status != "pass")
except SteptraceError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
