"""analyze_rank.py TRACE --out DIR | RUN_DIR --rank N --out DIR | DIR... --merge --out DIR: one rank, or all merged.

The last form makes of the folders that the first one wrote what `steptrace analyze` makes of the traces.
"""

import argparse
import sys
from pathlib import Path

from steptrace.analysis import write_rank
from steptrace.commands.analyze import write_analysis
from steptrace.errors import SteptraceError
from steptrace.report.trace import page
from steptrace.workflow.run_summary import analyze_rank

parser = argparse.ArgumentParser()
parser.add_argument("given", type=Path, nargs="+")
parser.add_argument("--out", type=Path, required=True)
what = parser.add_mutually_exclusive_group()
what.add_argument("--rank", type=int)
what.add_argument("--merge", action="store_true")
options = parser.parse_args()
try:
    if options.merge:
        page.write(write_analysis(options.given, options.out, analyzed=True), options.out / "report.html")
    elif options.rank is not None:
        analyze_rank(options.given[0], options.rank, options.out)
    else:
        write_rank(options.given[0], options.out)
except SteptraceError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
