"""What a `Capture` costs while nothing is asked for: `python bench/capture.py [--device cpu|cuda] [--json FILE]`.

One training loop, with and without `capture.step()` at the end of each step. A sample is a block of steps; both kinds
take turns in random order, so that a disturbance of the machine hits both, and so does a third, which calls an empty
function: its ratio shows the noise. A ratio is the median over rounds: with / without. The step is a small one on
purpose, since the cost does not grow with the step: a real one is longer. Beside it the time of the call alone, which
is what a step is longer by, from a loop that does nothing else.

Ends with exit code 1 if that time is over 1 % of the small step: a ratio as near to 1 as this is under any noise.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from steptrace.capture import Capture

LIMIT = 0.01


def small_step(device: str) -> Callable[[], object]:
    """One step of a small network, with its optimizer."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(32, 64, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return step


def block_s(step: Callable[[], object], after: Callable[[], object] | None, steps: int, device: str) -> float:
    """Seconds that a block of steps takes, the GPU's work included."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    if after is None:
        for _ in range(steps):
            step()
    else:
        for _ in range(steps):
            step()
            after()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def call_ns(call: Callable[[], object], empty: Callable[[], object], calls: int) -> float:
    """Nanoseconds of one call: a loop of calls less a loop of empty ones, the best of several."""

    def best(what: Callable[[], object]) -> float:
        times = []
        for _ in range(7):
            start = time.perf_counter_ns()
            for _ in range(calls):
                what()
            times.append(time.perf_counter_ns() - start)
        return min(times) / calls

    return best(call) - best(empty)


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description="The cost of capture.step() while nothing is asked for.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=30, help="blocks of each kind")
    parser.add_argument("--steps", type=int, default=200, help="steps of a block")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()

    torch.set_num_threads(1)
    draw = random.Random(0)
    step = small_step(options.device)
    with tempfile.TemporaryDirectory() as folder, Capture(folder, control=Path(folder) / "control") as capture:
        kinds: dict[str, Callable[[], object] | None] = {"without": None, "empty": lambda: None, "with": capture.step}
        block_s(step, capture.step, options.steps, options.device)
        seconds: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(options.rounds):
            for name in draw.sample(list(kinds), k=len(kinds)):
                seconds[name].append(block_s(step, kinds[name], options.steps, options.device))
        alone_ns = call_ns(capture.step, lambda: None, 50_000)
    step_ns = statistics.median(seconds["without"]) / options.steps * 1e9
    print(f"small step on {options.device}: {step_ns / 1000:.1f} us")
    figures: dict[str, object] = {"device": options.device, "step_ns": step_ns, "rounds": options.rounds}
    for name, what in (("with", "capture.step()"), ("empty", "an empty call ")):
        pairs = zip(seconds[name], seconds["without"], strict=True)
        low, middle, high = statistics.quantiles([a / b for a, b in pairs], n=4)
        figures[name] = {"ratio": middle, "quartiles": [low, high]}
        print(f"with {what} / without: {middle:.4f} (quartiles {low:.4f} to {high:.4f})")
    figures |= {"call_ns": alone_ns, "call_over_step": alone_ns / step_ns}
    print(f"capture.step() alone: {alone_ns:.0f} ns, {100 * alone_ns / step_ns:.3f} % of the small step")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 1 if alone_ns > LIMIT * step_ns else 0


if __name__ == "__main__":
    sys.exit(main())
