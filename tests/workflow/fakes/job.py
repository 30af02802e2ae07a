"""Stands in for analyze_runs.py, compare.py and report.py in workflow/scripts."""

import json
import sys
import time
from pathlib import Path

import pace

name = Path(__file__).stem
start = time.monotonic()
pace.wait()
with Path("runs.txt").open("a") as file:
    if name == "analyze_runs":
        for run in map(Path, sys.argv[1:]):
            file.write(f"{name} {run}\n")
            (run / "tables").mkdir(exist_ok=True)
            (run / "tables" / "steps.parquet").write_text("a table")
            (run / "summary.json").write_text(json.dumps({"by": name}))
        sys.exit()
    *given, _, out = (argument for argument in sys.argv[1:] if argument != "--traces")
    file.write(f"{name} {' '.join(given)}\n")
document = {"by": name}
if name == "compare":
    from documents import fill, plain
    from steptrace.documents.comparison import Comparison

    study = json.loads(Path(given[0], "study.json").read_text())
    variants = []
    for variant in study["variants"]:
        runs = []
        for k in range(study["repeats"]):
            status = json.loads(Path(given[0], variant["name"], f"run{k}", "status.json").read_text())
            error = {key: status[key] for key in ("status", "exit_code", "signal", "error", "log_tail")}
            runs.append({"repeat": k, "status": status["status"], "error": error})
        variants.append({"name": variant["name"], "runs": runs, "equivalence": {"status": "same"}})
    part = {"study": study["name"], "scale": study["scale"], "variants": variants}
    document = plain(fill(Comparison, part))
Path(out).write_text(json.dumps(document))
if name == "report":
    Path(out).with_suffix(".ipynb").write_text("{}")
with Path("spans.txt").open("a") as file:
    file.write(f"{name} {start} {time.monotonic()} -\n")
