"""Stands in for steptrace.train.equivalence."""

import argparse
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--config", type=Path)
parser.add_argument("--reference", type=Path)
parser.add_argument("--out", type=Path)
options = parser.parse_args()
assert options.reference.is_file()
with Path("runs.txt").open("a") as file:
    file.write(f"equivalence {options.out.parent}\n")
(options.out / "equivalence.json").write_text('{"status": "same"}')
