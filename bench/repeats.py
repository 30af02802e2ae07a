"""Are repeats independent? One variant against itself, with trainings that start fresh and with forks of one process.

    python bench/repeats.py [--runs 20] [--study masked_loss] [--variant boolean_mask] [--timed-steps N]

The same variant is trained twice N times each way, in rounds of random order. Fresh trainings are new programs. Forked
ones share one process that has imported PyTorch, so they share the seed of Python's hashes and the layout of addresses.
A and B have such a process each: forks of one process alone would be more alike than trainings of two calls of the
workflow. The forks are made by this script alone: the product forks no timed training.

Printed are the medians of the runs' median step times, the standard deviation of their logarithms between runs and the
typical one within a run, and in how many of the resampled A/A comparisons of 3, 5 and 10 runs the interval of
`steptrace.stats` covers 1. The interval claims 95 %. Runs are drawn without replacement, so N should be 20 or more.
"""

import argparse
import importlib
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from omegaconf import OmegaConf

from steptrace import stats
from steptrace.config.plan import make_plan
from steptrace.files import write_text
from steptrace.record import read_steps
from steptrace.root import ROOT

COMPARED = (3, 5, 10)
#: Serves forks: reads the arguments of a training from its input, and answers with the exit code.
SERVER = "import repeats; repeats.serve()"


def serve() -> None:
    """Fork a training for each line of arguments on standard input, and write its exit code."""
    for module in ("torch._dynamo", "torch.profiler", "steptrace.train.main"):
        importlib.import_module(module)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os.dup2(2, 1)  # what it prints is no answer
            os._exit(importlib.import_module("steptrace.train.main").main(line.split("\t")[:-1]))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


class Forks:
    """One process that forks trainings."""

    def __init__(self, log: Path) -> None:
        with log.open("a") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SERVER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
                text=True,
            )

    def train(self, arguments: list[str]) -> int:
        """Train in a fork; return the exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join([*arguments, "\n"]))
        self._process.stdin.flush()
        return int(self._process.stdout.readline() or 1)


def train_fresh(arguments: list[str], log: Path) -> int:
    """Train in a new program; return the exit code."""
    with log.open("a") as output:
        command = [sys.executable, "-m", "steptrace.train", *arguments]
        return subprocess.run(command, stdout=output, stderr=output, check=False).returncode


def step_times(run: Path) -> list[float]:
    """The step times of a run in milliseconds."""
    return [float(value) / 1e6 for value in read_steps(run)["step_ns"]]


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


def describe(way: str, runs: dict[str, list[list[float]]], resamples: int) -> None:
    """Print the figures of one way to start trainings."""
    medians = {name: [statistics.median(times) for times in of_runs] for name, of_runs in runs.items()}
    for name, values in medians.items():
        between = statistics.stdev(map(math.log, values)) if len(values) > 1 else math.nan
        within = statistics.median(statistics.stdev(map(math.log, times)) for times in runs[name])
        print(
            f"{way} {name}: {len(values)} runs, median {statistics.median(values):.3f} ms, "
            f"sd of logs between runs {between:.4f}, within a run {within:.4f}"
        )
    ratio = statistics.median(medians["A"]) / statistics.median(medians["B"])
    shares = {number: coverage(medians["A"], medians["B"], number, resamples) for number in COMPARED}
    told = ", ".join(f"{n} runs: {'too few' if share is None else f'{share:.1%}'}" for n, share in shares.items())
    print(f"{way}: A/B {ratio:.4f}; the interval covers 1 in  {told}")


def main() -> None:
    """Train, and print what came of it."""
    parser = argparse.ArgumentParser(description="Compare a variant with itself, by fresh and by forked trainings.")
    parser.add_argument("--runs", type=int, default=20, help="runs of each of the two, each way")
    parser.add_argument("--study", default="masked_loss")
    parser.add_argument("--variant", default="boolean_mask")
    parser.add_argument("--scale", default="auto", help="cpu, gpu or auto")
    parser.add_argument("--resamples", type=int, default=2000)
    parser.add_argument("--timed-steps", type=int, help="timed steps of a run; default: those of the scale")
    options = parser.parse_args()
    plan = make_plan(ROOT, ROOT, {"studies": [options.study], "scale": options.scale})
    variant = plan.variants[options.study, options.variant]
    runs: dict[tuple[str, str], list[list[float]]] = {(w, n): [] for w in ("fresh", "forked") for n in "AB"}
    with tempfile.TemporaryDirectory() as scratch:
        folder, log = Path(scratch), Path(scratch, "log")
        config = folder / "config.yaml"
        write_text(config, variant.snapshot(study=options.study, variant=options.variant))
        if options.timed_steps is not None:
            changed = OmegaConf.load(config)
            changed.scale.timed_steps = options.timed_steps
            OmegaConf.save(changed, config)
        servers = {name: Forks(log) for name in "AB"}
        for number in range(options.runs):
            turns = list(runs)
            random.Random(number).shuffle(turns)
            for way, name in turns:
                out = folder / f"{way}-{name}-{number}"
                # The same seed in each run: what differs between them is the process and the moment.
                arguments = [str(config), "--out", str(out)]
                code = train_fresh(arguments, log) if way == "fresh" else servers[name].train(arguments)
                if code:
                    sys.exit(f"a {way} training ended with {code}:\n{log.read_text()[-2000:]}")
                runs[way, name].append(step_times(out))
            print(f"round {number + 1} of {options.runs}", file=sys.stderr, flush=True)
    for way in ("fresh", "forked"):
        describe(way, {name: runs[way, name] for name in "AB"}, options.resamples)


if __name__ == "__main__":
    main()
