"""Checks a variant's loss, gradient and network against the study's float64 reference.

`python -m steptrace.equivalence.main --config CONFIG.yaml --reference REFERENCE.yaml --out DIR` writes
DIR/equivalence.json. The variant runs on its own device, in its own precision, memory format and torch.compile mode;
the reference runs on the CPU in float64. Both start with the same weights and have the same inputs: one batch per seed
of the config, then the data set's edge cases. `reference.py` says what is compared, `tolerance.py` how closely.
"""

import argparse
import sys
from pathlib import Path

from steptrace.equivalence.reference import cases_of, compare_on
from steptrace.equivalence.verdict import verdict_on
from steptrace.errors import code_of
from steptrace.lab.setup import load_config
from steptrace.run_folder import write_document


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code (0 whether or not the variant differs)."""
    parser = argparse.ArgumentParser(description="Check a variant's loss and gradient against the float64 reference.")
    parser.add_argument("--config", type=Path, required=True, help="resolved config of the variant (YAML)")
    parser.add_argument("--reference", type=Path, required=True, help="resolved config of the study's reference")
    parser.add_argument("--out", type=Path, required=True, help="folder for equivalence.json")
    options = parser.parse_args(arguments)
    return code_of(lambda: _check(options))


def _check(options: argparse.Namespace) -> int:
    config = load_config(options.config)
    reference = load_config(options.reference)
    result = verdict_on([compare_on(config, reference, *case) for case in cases_of(config)])
    write_document(options.out, result)
    sys.stdout.write(f"equivalence: {result.status}, largest relative error {result.max_rel_err}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
