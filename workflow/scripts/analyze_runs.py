"""`analyze_runs.py RUN_DIR...` writes each run's summary.json, with findings, and its tables."""

import argparse
from pathlib import Path

from steptrace.errors import exit_with
from steptrace.workflow.run_summary import summarize_run


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dirs", type=Path, nargs="+")
    for run_dir in parser.parse_args().run_dirs:
        summarize_run(run_dir, run_dir / "summary.json")
    return 0


if __name__ == "__main__":
    exit_with(main)
