"""compare.py STUDY_DIR --out FILE [--gates JSON] [--gpu NAME ...]: results/<study>/ compared, with findings, gates"""

import argparse
import json
import sys
from pathlib import Path

from msgspec.structs import replace

from steptrace.compare.gates import outcomes
from steptrace.compare.study import compare
from steptrace.documents.base import write
from steptrace.errors import SteptraceError
from steptrace.findings import with_findings

parser = argparse.ArgumentParser()
parser.add_argument("study_dir", type=Path)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--gates", type=json.loads, default={})
parser.add_argument("--gpu", nargs="*", default=[], help="to estimate for")
options = parser.parse_args()
try:
    found = with_findings(compare(options.study_dir, estimate_gpus=options.gpu))
    write(options.out, replace(found, gates=tuple(outcomes(found, options.gates))))
except SteptraceError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
