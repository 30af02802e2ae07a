"""What a study's page costs: `python bench/report_page.py [STUDY_FOLDER] [--against CHECKOUT]`.

STUDY_FOLDER holds a comparison.json (default: the first of results/ that does). Seconds are CPU time of the process
and of those that it starts, which a busy machine changes less than time on the clock; that stands beside it. A round
makes the page in a fresh process, as the workflow does, and once more in the same process, which leaves out imports and
whatever is kept. With another checkout of steptrace its pages are made in turns with this one's.

Ends with exit code 1 if another page in the same process takes 1 s or more.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT_S = 1.0
HERE = Path(__file__).resolve().parents[1]
#: Makes the page twice; prints CPU seconds and seconds of all up to the end of the first, and of the second.
TWICE = """
import os, runpy, sys, time
script, study, out = sys.argv[1:]
sys.argv[1:] = ["study", study, "--out", out]
for _ in range(2):
    before, start = (sum(os.times()[:4]), time.perf_counter()) if _ else (0.0, START)
    runpy.run_path(script, run_name="__main__")
    print(sum(os.times()[:4]) - before, time.perf_counter() - start)
"""


def page_s(checkout: Path, study: Path, out: Path) -> tuple[list[float], list[float]]:
    """CPU seconds and seconds on the clock of a page in a fresh process, and of another in the same one."""
    script = checkout / "workflow" / "scripts" / "report.py"
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    code = "import time; START = time.perf_counter()\n" + TWICE
    command = [sys.executable, "-c", code, str(script), str(study), str(out)]
    done = subprocess.run(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    first, second = ([float(number) for number in line.split()] for line in done.stdout.splitlines()[-2:])
    return [first[0], second[0]], [first[1], second[1]]


def measure(checkouts: list[Path], study: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Medians over the rounds, by checkout."""
    cpu: dict[Path, list[list[float]]] = {checkout: [] for checkout in checkouts}
    clock: dict[Path, list[list[float]]] = {checkout: [] for checkout in checkouts}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for checkout in checkouts if number % 2 == 0 else checkouts[::-1]:
                used, passed = page_s(checkout, study, Path(folder) / "reports" / "study.html")
                cpu[checkout].append(used)
                clock[checkout].append(passed)
    return {
        str(checkout): {
            "process_cpu_s": statistics.median(first for first, _ in cpu[checkout]),
            "process_s": statistics.median(first for first, _ in clock[checkout]),
            "another_page_cpu_s": statistics.median(second for _, second in cpu[checkout]),
            "another_page_s": statistics.median(second for _, second in clock[checkout]),
        }
        for checkout in checkouts
    }


def main() -> int:
    """Measure, print a table, and hold this checkout's page against the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", nargs="?", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    study = options.study or next((path.parent for path in sorted(HERE.glob("results/*/comparison.json"))), None)
    if study is None:
        print("not measured: no study has results here; make some with `make report`, or name a folder of them")
        return 0
    checkouts = [HERE, *([options.against.resolve()] if options.against else [])]
    measured = measure(checkouts, study.resolve(), options.rounds)
    print(f"{study.name}, medians of {options.rounds} rounds; CPU s (s on the clock)")
    for checkout, row in measured.items():
        fresh = f"{row['process_cpu_s']:.2f} ({row['process_s']:.2f})"
        again = f"{row['another_page_cpu_s']:.2f} ({row['another_page_s']:.2f})"
        print(f"  page in a process of its own {fresh}, another page in it {again}: {checkout}")
    if options.json:
        options.json.write_text(json.dumps(measured, indent=1) + "\n")
    return int(measured[str(HERE)]["another_page_cpu_s"] >= LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
