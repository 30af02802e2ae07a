"""Writes the pages of the workflow.

report.py study STUDY_DIR --out PAGE      (also writes the study's notebook beside it)
report.py index COMPARISON... [--traces SUMMARY...] --out PAGE
"""

import argparse
import sys
from pathlib import Path

from steptrace.errors import exit_with
from steptrace.report.index import render_index
from steptrace.report.study_page import render_study


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("study", "index"))
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--traces", nargs="*", type=Path, default=[])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.what == "study":
        comparison = options.files[0] / "comparison.json"
        render_study(comparison, options.out)
        _write_notebook(comparison, options.out.with_suffix(".ipynb"))
    else:
        render_index(options.files, options.out, options.traces)
    return 0


def _write_notebook(comparison: Path, out: Path) -> None:
    """Write the notebook beside the page; if that fails, it is a warning only."""
    from steptrace.report.notebook import NotebookError, write_notebook  # imports Jupyter, which the index need not

    try:
        write_notebook(comparison, out)
    except NotebookError as error:
        sys.stderr.write(f"warning: {out}: the notebook was not run to its end: {error}\n")


if __name__ == "__main__":
    exit_with(main)
