"""What planning a workflow costs: a dry run of many variants beside Snakemake's own of as many jobs and files.

    python bench/pipeline.py [--variants 100] [--json FILE]

Processor seconds; `again` is the second call, for which what was composed and read is remembered.
"""

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

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


def cpu(command: list[str], folder: Path) -> float:
    """Processor seconds of a command with its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Run the benchmark of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", type=int, default=100)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        figures = dry_runs(Path(folder), options.variants)
    for name, value in figures.items():
        print(f"{name:>24} {value:8.2f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
