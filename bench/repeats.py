"""Are repeats independent, and does another way to train time the same? An A/A study of one variant.

    python bench/repeats.py [--runs 20] [--study masked_loss] [--variant boolean_mask] [--timed-steps N]
    python bench/repeats.py --other 'PYTHONPATH=OLD/src python -m steptrace.train {config} --out {out}'

The same variant is trained as A and as B, N times each, in rounds of random order. A is trained as the workflow trains
it: a program with the probe in it, under the supervisor. B is trained in the same way, or by another command that
leaves steps.parquet in {out}, such as that of an earlier version of steptrace.

Printed are the medians of the runs' median step times, the standard deviation of their logarithms between runs and the
typical one within a run, and in how many of the resampled A/A comparisons of 3, 5 and 10 runs the interval of
`steptrace.stats` covers 1. The interval claims 95 %. Runs are drawn without replacement, so N should be 20 or more.
"""

import argparse
import math
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from omegaconf import OmegaConf

from steptrace import stats
from steptrace.config.plan import make_plan
from steptrace.files import write_text
from steptrace.root import ROOT
from steptrace.run_folder import read_steps

COMPARED = (3, 5, 10)


def train(command: str, config: Path, out: Path) -> None:
    """Train by a command for a shell, in which {config} and {out} are replaced."""
    words = command.replace("{config}", shlex.quote(str(config))).replace("{out}", shlex.quote(str(out)))
    done = subprocess.run(words, shell=True, capture_output=True, text=True, check=False)
    if done.returncode or not (out / "steps.parquet").exists():
        sys.exit(f"{words}\nended with {done.returncode} and left no step times:\n{done.stderr[-2000:]}")


def step_times(run: Path) -> list[float]:
    """The times of a run's timed steps, in milliseconds."""
    steps = read_steps(run)
    return [float(value) / 1e6 for value in steps.loc[steps["phase"] == "timed", "step_ns"]]


def coverage(first: list[float], second: list[float], runs: int, resamples: int) -> float | None:
    """The share of comparisons of so many runs of each whose interval covers 1; None with too few runs."""
    if min(len(first), len(second)) < runs:
        return None
    chance = random.Random(runs)
    covered = 0
    for _ in range(resamples):
        rounds = chance.sample(range(min(len(first), len(second))), runs)
        times = {
            "A": {number: first[place] for number, place in enumerate(rounds)},
            "B": {number: second[place] for number, place in enumerate(rounds)},
        }
        covered += not stats.ratios(times, "A")["B"].excludes_one
    return covered / resamples


def describe(runs: dict[str, list[list[float]]], resamples: int) -> None:
    """Print the figures."""
    medians = {name: [statistics.median(times) for times in of_runs] for name, of_runs in runs.items()}
    for name, values in medians.items():
        between = statistics.stdev(map(math.log, values)) if len(values) > 1 else math.nan
        within = statistics.median(statistics.stdev(map(math.log, times)) for times in runs[name])
        print(
            f"{name}: {len(values)} runs, median {statistics.median(values):.3f} ms, "
            f"sd of logs between runs {between:.4f}, within a run {within:.4f}"
        )
    ratio = statistics.median(medians["A"]) / statistics.median(medians["B"])
    shares = {number: coverage(medians["A"], medians["B"], number, resamples) for number in COMPARED}
    told = ", ".join(f"{n} runs: {'too few' if share is None else f'{share:.1%}'}" for n, share in shares.items())
    print(f"A/B {ratio:.4f}; the interval covers 1 in  {told}")


def main() -> None:
    """Train, and print what came of it."""
    parser = argparse.ArgumentParser(description="Compare a variant with itself.")
    parser.add_argument("--runs", type=int, default=20, help="runs of each of the two")
    parser.add_argument("--study", default="masked_loss")
    parser.add_argument("--variant", default="boolean_mask")
    parser.add_argument("--scale", default="auto", help="cpu, gpu or auto")
    parser.add_argument("--resamples", type=int, default=2000)
    parser.add_argument("--timed-steps", type=int, help="timed steps of a run; default: those of the scale")
    parser.add_argument("--other", help="command of B, with {config} and {out}; default: as A")
    options = parser.parse_args()
    plan = make_plan(ROOT, ROOT, {"studies": [options.study], "scale": options.scale})
    variant = plan.variants[options.study, options.variant]
    devices = "--cpu" if variant.config["device"] == "cpu" else f"--gpus {variant.config['distributed']['world_size']}"
    python = shlex.quote(sys.executable)
    first = f"{python} -m steptrace.jobs.supervise {devices} --out {{out}} --variant {{config}}"
    commands = {"A": first, "B": options.other or first}
    runs: dict[str, list[list[float]]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        config = folder / "config.yaml"
        write_text(config, variant.snapshot(study=options.study, variant=options.variant))
        if options.timed_steps is not None:
            changed = OmegaConf.load(config)
            changed.scale.timed_steps = options.timed_steps
            OmegaConf.save(changed, config)
        for number in range(options.runs):
            turns = list(runs)
            random.Random(number).shuffle(turns)
            for name in turns:
                out = folder / f"{name}-{number}"
                # The same seed in each run: what differs between them is the process and the moment.
                train(commands[name], config, out)
                runs[name].append(step_times(out))
            print(f"round {number + 1} of {options.runs}", file=sys.stderr, flush=True)
    describe(runs, options.resamples)


if __name__ == "__main__":
    main()
