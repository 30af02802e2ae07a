"""What a call of the workflow costs that has nothing to do, beside Snakemake's own of as many jobs and files.

    python bench/pipeline.py [--json FILE]

Processor seconds of `snakemake -n`, the smallest of several calls: of the default studies, and of a study of 100
variants. Nothing is trained: every output is an empty file that Snakemake takes for up to date, beside statuses of what
has ended well.
"""

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from steptrace.documents.run import Status
from steptrace.run_folder import PREDICTION_FILE, RUN_FILE, write_document

ROOT = Path(__file__).resolve().parents[1]
VARIANTS = 100
CALLS = 3
STATUS = Status(status="ok", exit_code=0, signal=None, error=None, log_tail=(), started_at="", wall_s=1.0)
LOSSES = ("boolean_mask", "where", "sort", "ignore_index")
BARE = """
S = {STUDIES}
RUNS = lambda name, s: expand("r/" + s + "/{v}/run{k}/" + name, v=S[s], k=range(3))
rule all:
    input: [RUNS("summary.json", s) for s in S], expand("p/{s}.html", s=S), "p/index.html"
for s in S:
    for k in range(3):
        rule:
            name: f"train_{s}_{k}"
            output: f"r/{s}/{{v}}/run{k}/status.json"
            params: depends=lambda wildcards: wildcards.v
            shell: "touch {output}"
    for c in ["equivalence", "prediction"]:
        rule:
            name: f"{c}_{s}"
            output: f"r/{s}/{c}.json"
            params: variants=S[s]
            shell: "touch {output}"
    rule:
        name: f"analyze_{s}"
        input: expand("r/" + s + "/{{v}}/run{k}/status.json", k=range(3))
        output: expand("r/" + s + "/{{v}}/run{k}/summary.json", k=range(3))
        shell: "touch {output}"
rule compare:
    input:
        lambda w: RUNS("status.json", w.s) + RUNS("summary.json", w.s),
        expand("r/{{s}}/{c}.json", c=["equivalence", "prediction"]),
    output: "r/{s}/comparison.json"
    shell: "touch {output}"
rule report:
    input: "r/{s}/comparison.json", lambda w: RUNS("summary.json", w.s)
    output: "p/{s}.html"
    shell: "touch {output}"
rule index:
    input: expand("r/{s}/comparison.json", s=S)
    output: "p/index.html"
    shell: "touch {output}"
ruleorder: index > report
"""


def calls(folder: Path, *, many: bool) -> dict[str, float]:
    """Processor seconds of calls with nothing to do: Snakemake's own, ours, and their ratio."""
    bare = folder / "bare"
    ours = folder / "ours"
    for one in (bare, ours / "config" / "study"):
        one.mkdir(parents=True)
    studies = "[many]" if many else "[masked_loss, giou, input_pipeline]"
    (ours / "config" / "workflow.yaml").write_text(f"studies: {studies}\nscale: cpu\n")
    if many:
        variants = "\n".join(f"  v{i}: [seed={i}, loss={LOSSES[i % 4]}]" for i in range(VARIANTS))
        text = f"title: Many\nbaseline: v0\nreference: [loss=masked_reference]\nvariants:\n{variants}\n"
        (ours / "config" / "study" / "many.yaml").write_text(text)
    snakemake = [sys.executable, "-m", "snakemake", "--cores", "2"]
    workflow = ["--snakefile", str(ROOT / "Snakefile"), "--workflow-profile", str(ROOT / "profiles" / "default")]
    ours_s = nothing_to_do([*snakemake, *workflow, "--directory", str(ours)], ours)
    jobs: dict[str, list[str]] = {}
    for run in sorted(ours.glob("results/*/*/run0")):
        jobs.setdefault(run.parts[-3], []).append(run.parts[-2])
    (bare / "Snakefile").write_text(BARE.replace("{STUDIES}", repr(jobs)))
    own_s = nothing_to_do([*snakemake, "--rerun-triggers", "mtime", "params", "input", "--nolock"], bare)
    return {"variants": sum(map(len, jobs.values())), "snakemake_s": own_s, "ours_s": ours_s, "ratio": ours_s / own_s}


def nothing_to_do(command: list[str], folder: Path) -> float:
    """The smallest processor time of a dry run, once every output is there."""
    listed = subprocess.run([*command, "--summary"], cwd=folder, capture_output=True, text=True, check=True).stdout
    for row in listed.splitlines()[1:]:
        output = folder / row.partition("\t")[0]
        output.parent.mkdir(parents=True, exist_ok=True)
        (output.mkdir if output.name == "tables" else output.touch)()
    end_well(folder / "results")
    subprocess.run([*command, "--touch"], cwd=folder, capture_output=True, check=True)
    return min(cpu([*command, "-n"], folder) for _ in range(CALLS))


def end_well(results: Path) -> None:
    """Leave statuses of what has ended well, with the files that it leaves."""
    left = {run: run / RUN_FILE for run in results.glob("*/*/run[0-9]")}
    for variant in {run.parent for run in left}:
        left[variant / "equivalence"] = variant / "equivalence" / "equivalence.json"
        left[variant / "prediction"] = variant / PREDICTION_FILE
    left |= {folder: folder / "build.json" for folder in results.glob("extension")}
    for folder, file in left.items():
        write_document(folder, STATUS)
        file.touch()


def cpu(command: list[str], folder: Path) -> float:
    """Processor seconds of a call with its children, which must have nothing to do."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "Nothing to be done" in done.stdout, done.stdout
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Run the benchmark of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = {}
    for name in ("default studies", f"{VARIANTS} variants"):
        with TemporaryDirectory() as folder:
            figures[name] = calls(Path(folder), many=name != "default studies")
        print(name, *(f"{key} {value:.2f}" for key, value in figures[name].items()), sep="  ")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
