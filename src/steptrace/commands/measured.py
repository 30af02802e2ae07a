"""The text of `steptrace run` on a measured program: step times and their kinds, waits for data, GPU busy, syncs."""

import re
import shlex
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace

from steptrace import format as fmt
from steptrace.documents.probe import MeasuredStep
from steptrace.engine.kinds import Kind, kinds_of, to_show_period, unusual
from steptrace.launch.result import Launched, timed
from steptrace.limits import LONG_STEPS
from steptrace.run_times import iqr_over_median
from steptrace.stats import IQR_REFUSED

if TYPE_CHECKING:
    from steptrace.documents.run import RunRecord
    from steptrace.documents.summary import Summary
    from steptrace.documents.syncs import SyncSite

#: The most lines with a sync that the terminal shows.
_MOST_LINES: Final = 12
_SEVERAL: Final = 2
#: Flags that keep programs from using a GPU.
_ON_CPU: Final = re.compile(r"--?(no[-_](cuda|gpu|accel)|(use[-_])?cpu)\Z")


@dataclass(frozen=True)
class MeasuredProgram:
    """One run of the program."""

    launched: Launched
    record: "RunRecord"
    run_dir: Path

    @property
    def timed(self) -> list[MeasuredStep]:
        """The first rank's timed steps; the time of each is the slowest rank's."""
        ranks = zip(*map(timed, self.launched.ranks), strict=False)
        return [replace(rows[0], step_ns=max(row.step_ns for row in rows)) for rows in ranks]

    @property
    def steps_ms(self) -> list[float]:
        """Their times in ms."""
        return [row.step_ns / fmt.NS_PER_MS for row in self.timed]

    @property
    def wait_ms(self) -> float | None:
        """The mean wait for data; None in a program without a DataLoader."""
        waits = [row.wait_ns for row in self.timed if row.batches]
        return statistics.mean(waits) / fmt.NS_PER_MS if waits else None

    @property
    def operators(self) -> tuple[int, ...]:
        """How many operators the first rank's last steps of the warm-up ran."""
        return self.launched.ranks[0].operators

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of the first rank's timed steps."""
        return kinds_of([row.step_ns for row in timed(self.launched.ranks[0])], self.operators)


def spread(times: Sequence[float]) -> tuple[float, float]:
    """The 5 % and 95 % quantiles of the step times; both lie within the measured times."""
    ends = statistics.quantiles(times, n=20, method="inclusive") if len(times) > 1 else [times[0]]
    return ends[0], ends[-1]


def timing(measured: MeasuredProgram, summary: "Summary | None" = None) -> list[str]:
    """The lines on the step time with its spread, the kinds of steps, the parts of a step, and the wait for data.

    `summary`: of its traces, for the syncs of each kind.
    """
    steps = measured.steps_ms
    rows = measured.timed
    low, high = spread(steps)
    where = measured.record.environment.gpu or "CPU"
    ranks = measured.record.world_size
    median = statistics.median(steps)
    mean = statistics.mean(steps)
    mean_too = f" (median; mean {fmt.duration_ms(mean)})" if max(mean, median) > LONG_STEPS * min(mean, median) else ""
    range_ms = f"{fmt.duration_ms(low)} to {fmt.duration_ms(high)}"
    head = f"  step {fmt.duration_ms(median)}{mean_too}, 5 % to 95 %: {range_ms}"
    lines = [f"{head} ({len(steps)} timed steps, {where}{f', {ranks} ranks' if ranks > 1 else ''})"]
    lines += _kinds(measured, [] if summary is None else [kind.syncs for kind in summary.traces[0].step_kinds])
    typical = {
        name: statistics.mode(getattr(row, name) for row in rows) for name in ("batches", "backwards", "samples")
    }
    parts = [f"{typical['backwards']} backward passes" if typical["backwards"] != 1 else "1 backward pass"]
    if typical["batches"]:
        parts.append("1 batch" if typical["batches"] == 1 else f"{typical['batches']} batches")
        parts += [fmt.plural(typical["samples"], "sample")] if typical["samples"] else []
    # Their steps in all, with those of warm-up and of the profiler, are in run.json: no other figure here counts them.
    optimizers = ", ".join(name for name, _ in measured.launched.ranks[0].optimizers)
    lines.append(f"  each step: {', '.join(parts)}; optimizer: {optimizers or 'none seen'}")
    if (wait := measured.wait_ms) is not None:
        shown = f"{fmt.duration_ms(wait)} of a mean step's {fmt.duration_ms(mean)} ({fmt.share(wait / mean)})"
        lines.append(f"  waiting for data: {shown}")
    else:
        lines.append("  waiting for data: not measured, since no DataLoader was used")
    if measured.launched.complete:
        lines.append("  stopped once it was measured: its final checkpoint, if any, was not written")
    return lines


def _kinds(measured: MeasuredProgram, syncs: Sequence[float | None]) -> list[str]:
    """A line for each kind of steps, and how to see more of them; `syncs`: each kind's, where they were measured."""
    kinds = measured.kinds
    if len(kinds) < _SEVERAL:
        return [f"    {_of_one_kind(measured.steps_ms, measured.operators)}"]
    of_kinds = syncs if len(syncs) == len(kinds) else [None] * len(kinds)
    lines = [
        f"    {kind.steps} of {kind.of} steps{'' if kind.every is None else f' (one every {kind.every})'}: "
        + ("" if count is None else f"{fmt.plural(count, 'sync')}, ")
        + ("" if kind.operators is None else f"{fmt.plural(round(kind.operators), 'operator')}, ")
        + f"median {fmt.duration_ns(kind.typical)}, {fmt.share(kind.share)} of the time"
        for kind, count in zip(kinds, of_kinds, strict=True)
    ]
    if kinds[-1].every is None:
        irregular = "    the long steps come irregularly, as other work on the machine makes them"
        once = f"    only one long step was seen: --steps {to_show_period(kinds[-1].of)} shows how often it comes"
        lines.append(once if kinds[-1].steps == 1 else irregular)
    return lines


def _are_uneven(times: Sequence[float]) -> bool:
    """Whether step times are too uneven for a verdict in a study."""
    return iqr_over_median([np.array(times)]) > IQR_REFUSED


def _of_one_kind(times: Sequence[float], operators: Sequence[int]) -> str:
    """Advice on more steps if all timed steps are of one kind, by their times and by earlier steps' operators."""
    rare = [operators[number] for number in unusual(operators)]
    if len(rare) == 1:
        usual = fmt.count(statistics.mode(operators))
        once = f"one of the last {len(operators)} warm-up steps runs {fmt.count(rare[0])} operators instead of {usual}"
        return f"{once}: --warmup {to_show_period(len(operators))} shows how often that comes"
    steps = len(times)
    if _are_uneven(times):
        return f"the {steps} steps are too uneven to tell kinds of steps apart"
    return f"none of {steps} steps stands out; --steps {to_show_period(steps)} shows what comes less often"


def of_traces(summary: "Summary", *, on_gpu: bool, command: Sequence[str]) -> list[str]:
    """The syncs by their lines."""
    if not on_gpu:
        next_step = f"steptrace predict -- {shlex.join(on_gpu_command(command))}"
        return [f"  syncs: not measured (no GPU); to predict them: {next_step}"]
    trace = summary.traces[0]
    lines = sync_lines(trace.syncs.sites, max(len(trace.steps), 1))
    differ = len(set(trace.syncs.by_step or ())) >= _SEVERAL
    return [f"  syncs per {'profiled step, mean' if differ else 'step'}:", *lines] if lines else []


def on_gpu_command(command: Sequence[str]) -> list[str]:
    """The command with `cuda` instead of `cpu` and without flags for the CPU, since a prediction follows a GPU."""
    words = (re.sub(r"^(--?[\w-]*device=)?cpu\Z", r"\1cuda", word) for word in command)
    return [word for word in words if not _ON_CPU.match(word)]


def sync_lines(sites: "Sequence[SyncSite]", steps: int) -> list[str]:
    """The program's lines with the most syncs in a step; the page also has operators and phases."""
    from steptrace.documents.syncs import place_of  # a call without syncs needs no documents

    counts: Counter[str] = Counter()
    for site in sites:
        counts[f"{site.kind} at {place_of(site)}  {site.code or ''}".rstrip()] += site.count
    shown = counts.most_common(_MOST_LINES)
    lines = [f"    {fmt.count(count / steps)} x {place}" for place, count in shown]
    if more := len(counts) - len(shown):
        lines.append(f"    {fmt.plural(more, 'more line')}: on the page, and in summary.json")
    return lines
