"""evidence_studies.py WORK --scale gpu [--studies NAME[:REPEATS] ...]: studies this machine can run, one a line.

Those that need more GPUs than it has are left out; why stands on stderr.
"""

import argparse
import sys
from pathlib import Path

from steptrace.errors import SteptraceError
from steptrace.evidence_plan import runnable

parser = argparse.ArgumentParser()
parser.add_argument("work", type=Path)
parser.add_argument("--scale", required=True)
parser.add_argument("--studies", nargs="*", default=[])
options = parser.parse_args()
try:
    chosen, left_out = runnable(Path(__file__).parents[2], options.work, options.scale, options.studies)
except SteptraceError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
print("\n".join(chosen))
print("".join(f"{reason}\n" for reason in left_out), end="", file=sys.stderr)
