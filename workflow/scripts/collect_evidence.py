"""collect_evidence.py WORK --scale gpu --out reports/reference --command TEXT: a node's small results, under 5 MB."""

import argparse
import sys
from pathlib import Path

from steptrace.errors import SteptraceError
from steptrace.evidence import collect

parser = argparse.ArgumentParser()
parser.add_argument("work", type=Path)
parser.add_argument("--scale", required=True)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--command", required=True)
options = parser.parse_args()

try:
    folder = collect(options.work, scale=options.scale, out=options.out, command=options.command)
except SteptraceError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
print(f"{sum(1 for file in folder.rglob('*') if file.is_file())} files in {folder}")
