"""What the workflow adds to the trainings: starting a run, forked and by itself, and a dry run of many variants.

    python bench/pipeline.py [--runs 5] [--variants 1000] [--json FILE]
    python bench/pipeline.py --study gpu

Runs are those of `masked_loss` at scale cpu, forked and not in turns, in seconds of wall time from their supervisor's
start to its end; the first forked one, which starts the server, counts apart. A dry run is held against Snakemake's own
of a workflow with as many jobs and files and no Python of ours, in processor seconds; `again` is the second call, for
which what was composed and read is remembered. `--study SCALE` runs `masked_loss` (12 short runs) at that scale instead
and says which share of the time each kind of job took, from the first job to the last.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from steptrace.train.fork_client import VARIABLE

from steptrace.config.plan import make_plan

ROOT = Path(__file__).resolve().parents[1]
LOSSES = ("boolean_mask", "where", "sort", "ignore_index")
BARE = """
V = [f"v{i}" for i in range(VARIANTS)]
RUNS = expand("r/{v}/run{k}/status.json", v=V, k=range(3))
rule all:
    input: RUNS, expand("r/{v}/{c}/status.json", v=V, c=["equivalence", "prediction"]), "r/comparison.json"
for k in range(3):
    rule:
        name: f"train{k}"
        input: "c/{v}.yaml"
        output: f"r/{{v}}/run{k}/status.json"
        shell: "touch {output}"
for c in ["equivalence", "prediction"]:
    rule:
        name: c
        input: "c/{v}.yaml"
        output: f"r/{{v}}/{c}/status.json"
        shell: "touch {output}"
rule analyze:
    input: expand("r/{{v}}/run{k}/status.json", k=range(3))
    output: expand("r/{{v}}/run{k}/summary.json", k=range(3))
    shell: "touch {output}"
rule compare:
    input: RUNS, expand("r/{v}/run{k}/summary.json", v=V, k=range(3))
    output: "r/comparison.json"
    shell: "touch {output}"
"""


def starts(folder: Path, runs: int) -> dict[str, float]:
    """Seconds of a run by itself and forked, medians in turns, and of the first forked one."""
    make_plan(ROOT, folder, {"studies": ["masked_loss"], "scale": "cpu"})
    took: dict[str, list[float]] = {"0": [], "1": []}
    for k in range(runs + 1):
        for fork in took:
            out = f"results/run{k}{fork}"
            command = [sys.executable, "-m", "steptrace.train.supervise", "--out", out, "--attempt", "1", "--device"]
            command += ["cpu", "--expect", "run.json", "--server", "run0", "--", sys.executable, "-m"]
            command += ["steptrace.train.main", "--config", "results/masked_loss/boolean_mask/config.yaml"]
            command += ["--out", out, "--repeat", "0"]
            start = time.perf_counter()
            variables = {**os.environ, VARIABLE: fork, "STEPTRACE_LOCKS": str(folder / "locks")}
            subprocess.run(command, cwd=folder, env=variables, stderr=subprocess.DEVNULL, check=True)
            took[fork].append(time.perf_counter() - start)
            status = json.loads((folder / out / "status.json").read_text())
            if status["status"] != "ok":
                raise SystemExit(f"a run failed: {status['error']}")
    own, forked = statistics.median(took["0"][1:]), statistics.median(took["1"][1:])
    return {"own_s": own, "forked_s": forked, "first_forked_s": took["1"][0], "ratio": own / forked}


def dry_runs(folder: Path, variants: int) -> dict[str, float]:
    """Processor seconds of dry runs: Snakemake's own, ours without anything remembered, ours again."""
    bare, ours = folder / "bare", folder / "ours"
    (bare / "c").mkdir(parents=True)
    for i in range(variants):
        (bare / "c" / f"v{i}.yaml").touch()
    (bare / "Snakefile").write_text(BARE.replace("VARIANTS", str(variants)))
    study = "\n".join(f"  v{i}: [seed={i}, loss={LOSSES[i % 4]}]" for i in range(variants))
    (ours / "config" / "study").mkdir(parents=True)
    (ours / "config" / "workflow.yaml").write_text("studies: [many]\nscale: cpu\n")
    text = f"title: Many\nbaseline: v0\nreference: [loss=masked_reference]\nvariants:\n{study}\n"
    (ours / "config" / "study" / "many.yaml").write_text(text)
    own = cpu([sys.executable, "-m", "snakemake", "-n", "--cores", "2", "--quiet", "rules", "progress"], bare)
    command = [sys.executable, "-m", "snakemake", "-n", "--cores", "2", "--snakefile", str(ROOT / "Snakefile")]
    command += ["--workflow-profile", str(ROOT / "profiles" / "default"), "--directory", str(ours)]
    cold, again = cpu(command, ours), cpu(command, ours)
    return {"variants": variants, "snakemake_s": own, "cold_s": cold, "again_s": again, "ratio": again / own}


def study(folder: Path, scale: str) -> dict[str, object]:
    """Where the time of a study of 12 short runs goes: its results/timing.json."""
    command = [sys.executable, "-m", "snakemake", "--cores", "all", "--snakefile", str(ROOT / "Snakefile")]
    command += ["--workflow-profile", str(ROOT / "profiles" / "default"), "--directory", str(folder)]
    subprocess.run([*command, "--config", "studies=[masked_loss]", f"scale={scale}"], check=True)
    timing: dict[str, object] = json.loads((folder / "results" / "timing.json").read_text())
    return timing


def cpu(command: list[str], folder: Path) -> float:
    """Processor seconds of a command with its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--variants", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--study", metavar="SCALE", help="run a study at this scale (cpu, gpu), and nothing else")
    options = parser.parse_args()
    with TemporaryDirectory(ignore_cleanup_errors=True) as name:
        if options.study:
            found: dict[str, object] = {"study": study(Path(name), options.study)}
        else:
            found = {"start": starts(Path(name), options.runs), "dry_run": dry_runs(Path(name), options.variants)}
    print(json.dumps(found, indent=2))
    if options.json:
        options.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
