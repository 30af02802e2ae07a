"""Whether all runs succeeded and all gates hold: `write` writes the verdict, `enforce` turns it into an exit code.

verdict.py write COMPARISON... --gates JSON --out FILE
verdict.py enforce FILE
"""

import argparse
import json
from pathlib import Path

from steptrace.compare.gates import explain, judge
from steptrace.documents.base import read, write
from steptrace.documents.comparison import Comparison, Verdict
from steptrace.errors import exit_with


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("write", "enforce"))
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--gates", type=json.loads, default={})
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.what == "enforce":
        verdict = read(options.files[0], Verdict)
        print(explain(verdict))  # noqa: T201
        return int(verdict.status != "pass")
    write(options.out, judge([read(path, Comparison) for path in options.files], options.gates))
    return 0


if __name__ == "__main__":
    exit_with(main)
