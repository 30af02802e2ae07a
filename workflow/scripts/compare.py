"""`compare.py STUDY_DIR --out FILE [--gates JSON] [--gpu NAME...]` writes a study's comparison.json.

It holds findings, the outcome of the study's gates, and estimates for the named GPUs.
"""

import argparse
import json
from pathlib import Path

from msgspec.structs import replace

from steptrace.compare.gates import outcomes
from steptrace.compare.study import compare
from steptrace.documents.base import write
from steptrace.errors import exit_with
from steptrace.findings import with_findings


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("study_dir", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gates", type=json.loads, default={})
    parser.add_argument("--gpu", nargs="*", default=[], help="GPUs to estimate for")
    options = parser.parse_args()
    comparison = with_findings(compare(options.study_dir, estimate_gpus=options.gpu))
    write(options.out, replace(comparison, gates=tuple(outcomes(comparison, options.gates))))
    return 0


if __name__ == "__main__":
    exit_with(main)
