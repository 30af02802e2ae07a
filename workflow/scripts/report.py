"""The pages of the workflow.

report.py study STUDY_DIR --out PAGE
report.py index COMPARISON... [--traces SUMMARY...] --out PAGE
"""

import argparse
from pathlib import Path

from steptrace.errors import exit_with
from steptrace.report.index import render_index
from steptrace.report.notebook import render_study


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("study", "index"))
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--traces", nargs="*", type=Path, default=[])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.what == "study":
        render_study(options.files[0] / "comparison.json", options.out)
    else:
        render_index(options.files, options.out, options.traces)
    return 0


if __name__ == "__main__":
    exit_with(main)
