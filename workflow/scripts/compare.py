"""compare.py STUDY_DIR --out FILE: the comparison of results/<study>/ with its findings, as JSON"""

import argparse
import sys
from pathlib import Path

from steptrace.compare import compare
from steptrace.errors import SteptraceError
from steptrace.findings import with_findings
from steptrace.record import write_json

parser = argparse.ArgumentParser()
parser.add_argument("study_dir", type=Path)
parser.add_argument("--out", type=Path, required=True)
options = parser.parse_args()

try:
    write_json(options.out, with_findings(compare(options.study_dir)))
except SteptraceError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
