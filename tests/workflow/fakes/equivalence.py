"""Stands in for steptrace.equivalence.main."""

import argparse
import sys
from pathlib import Path

import pace


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    assert options.reference.is_file()
    with Path("runs.txt").open("a") as file:
        file.write(f"equivalence {options.out.parent}\n")
    pace.wait()
    (options.out / "equivalence.json").write_text('{"status": "same"}')
    return 0


if __name__ == "__main__":
    sys.exit(main())
