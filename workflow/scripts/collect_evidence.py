"""collect_evidence.py WORK --scale gpu --out reports/reference --command TEXT: a node's small results, under 5 MB."""

import argparse
import sys
import tarfile
from pathlib import Path

from steptrace.errors import SteptraceError
from steptrace.evidence import collect

parser = argparse.ArgumentParser()
parser.add_argument("work", type=Path)
parser.add_argument("--archive", type=Path, help="also pack the folder into this .tar.gz")
for name in ("scale", "command", "commit"):
    parser.add_argument(f"--{name}", required=True)
parser.add_argument("--out", type=Path, required=True)
options = parser.parse_args()

try:
    about = {"scale": options.scale, "command": options.command, "commit": options.commit}
    folder = collect(options.work, out=options.out, **about)
except SteptraceError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
if options.archive:
    with tarfile.open(options.archive, "w:gz") as archive:
        archive.add(folder, folder.name)
print(f"{sum(1 for file in folder.rglob('*') if file.is_file())} files in {folder}")
