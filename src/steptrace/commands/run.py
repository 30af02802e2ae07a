"""`steptrace run -- COMMAND`: starts any program that trains with PyTorch, measures its steps, says what it found."""

import argparse
import re
import shlex
import shutil
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from steptrace import format as fmt
from steptrace.commands.estimated import as_json, estimates, gpu_names, table
from steptrace.commands.numbers import not_negative, positive, seconds
from steptrace.commands.output import show, warn
from steptrace.documents.estimate import Estimate
from steptrace.engine.kinds import DIFFERENT, FIRST_STEPS, Kind, kinds_by_time, per_step, to_show_period
from steptrace.errors import LaunchError
from steptrace.estimate import Gpu, gpu_named
from steptrace.launch.settings import LaunchSettings
from steptrace.launch.start import Launched, Limits, Streams, launch, require_steps

if TYPE_CHECKING:
    from steptrace.documents.run import RunRecord
    from steptrace.documents.summary import Summary, TraceSummary
    from steptrace.documents.syncs import SyncSite

#: The program ended by itself before all of its steps were measured.
EXIT_ENDED_EARLY: Final = 1
_NS_PER_MS: Final = 1e6
#: Lines with a sync that the terminal shows.
_MOST_LINES: Final = 12
_SEVERAL: Final = 2


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.description = (
        "Start any program that trains with PyTorch, unchanged; each optimizer step ends a step. After the "
        "warm-up the next steps are timed, then a few profiled. Then the program is stopped, so its final checkpoint "
        "is not written. Exit code 0 if all steps were measured, 1 if the program ended before, "
        "2 if nothing could be measured. With --capture the program runs to its own end and exit code."
    )
    command.add_argument("--steps", type=positive, default=30, metavar="N", help="steps timed; default: 30")
    command.add_argument("--warmup", type=positive, default=10, metavar="N", help="steps before them; default: 10")
    command.add_argument(
        "--profile", type=not_negative, default=3, metavar="N", help="steps profiled after them, or 0; default: 3"
    )
    command.add_argument("--repeats", type=positive, default=1, metavar="N", help="start the program N times")
    command.add_argument(
        "--out", type=Path, metavar="DIR", help="folder to write to; an earlier run's is replaced; default: "
        "steptrace-run, or captures",
    )  # fmt: skip
    command.add_argument(
        "--capture", action="store_true", help="measure nothing: the program runs to its own end and exit code, and "
        "`steptrace capture PID` records its next steps whenever it is asked to, into DIR",
    )  # fmt: skip
    add_limits(command)
    command.add_argument(
        "--gpu", type=gpu_names, default=(), metavar="GPU[,GPU]", help="follow the program once more, on a virtual "
        "GPU: its predicted syncs, and the estimate of its step on these, such as H100,L4, on terminal and page",
    )  # fmt: skip
    command.add_argument("--no-report", action="store_true", help="leave report.html out")
    command.add_argument("program", nargs="+", metavar="COMMAND", help="the program and its arguments, after --")


def add_limits(command: argparse.ArgumentParser) -> None:
    """Add when the program is stopped."""
    command.add_argument(
        "--first-step-within", type=seconds, default=600.0, metavar="S",
        help="stop a program that shows no step for so long; default: 600 s",
    )  # fmt: skip
    command.add_argument("--timeout", type=seconds, metavar="S", help="stop the program after so long in any case")


def run(arguments: argparse.Namespace) -> int:
    """Run the program, write what was measured, say it in short, and return the exit code."""
    if arguments.capture:
        return _run_capturable(arguments)
    from steptrace.launch.result import Named, write_results

    gpus = [gpu_named(name) for name in arguments.gpu]  # before anything runs
    out = _prepared(arguments.out or Path("steptrace-run"))
    limits = Limits(arguments.first_step_within, arguments.timeout)
    settings = LaunchSettings(
        str((out / "probe").absolute()), "measure", arguments.warmup, arguments.steps, arguments.profile
    )
    program = {"command": arguments.program, "cwd": str(Path.cwd())}
    measured: list[_Measured] = []
    for repeat in range(arguments.repeats):
        streams = Streams(sys.stderr if arguments.json else None, _status)
        launched = launch(arguments.program, settings, limits=limits, streams=streams)
        require_steps(launched)
        run_dir = out / f"run{repeat}"
        record = write_results(launched, run_dir, Named(repeat=repeat), program)
        measured.append(_Measured(launched, record, run_dir))
    shutil.rmtree(settings.out)
    _say(measured, out, arguments, _predicted(arguments, gpus, limits) if gpus else None)
    return 0 if all(one.launched.complete for one in measured) else EXIT_ENDED_EARLY


def _predicted(arguments: argparse.Namespace, gpus: Sequence[Gpu], limits: Limits) -> "_Predicted | None":
    """What following the program once more predicts; None, with a warning, where it cannot be followed."""
    from steptrace.commands.predict import STEPS, WARMUP, follow_command

    try:
        prediction = follow_command(arguments.program, limits, warmup=WARMUP, steps=STEPS).prediction
    except LaunchError as error:
        warn(f"it could not be followed on a virtual GPU: {error}")
        return None
    return None if prediction is None else _Predicted(prediction, estimates({None: prediction}, gpus))


def _status(line: str) -> None:
    print(f"steptrace: {line}", file=sys.stderr, flush=True)  # noqa: T201


def _run_capturable(arguments: argparse.Namespace) -> int:
    """Run the program to its end with a probe that answers `steptrace capture`, and return its exit code."""
    with tempfile.TemporaryDirectory(prefix="steptrace-") as scratch:
        captures = (arguments.out or Path("captures")).absolute()
        settings = LaunchSettings(scratch, "capture", captures=str(captures))
        launched = launch(arguments.program, settings, limits=Limits(None, arguments.timeout))
        try:
            require_steps(launched)
        except LaunchError as error:
            warn(f"it could not be captured: {error}")
    return launched.exit_code if launched.exit_code >= 0 else 128 - launched.exit_code


@dataclass(frozen=True)
class _Predicted:
    """The program on a virtual GPU: a prediction, and its estimates."""

    prediction: dict[str, Any]
    estimates: list[Estimate]

    def lines(self, command: str) -> list[str]:
        """What is said of it."""
        from steptrace.commands.predict import text_of

        ranks = len(self.prediction.get("by_rank") or ())
        return [*text_of(command, self.prediction), *table(self.estimates, ranks=ranks)]

    def to_json(self) -> dict[str, Any]:
        """Plain data for `--json`, as `steptrace predict --json` has it."""
        prediction = {name: value for name, value in self.prediction.items() if name != "operator_calls"}
        return {**prediction, "estimate": as_json(self.estimates)}


@dataclass(frozen=True)
class _Measured:
    """One run of the program."""

    launched: Launched
    record: "RunRecord"
    run_dir: Path

    @property
    def timed(self) -> list[dict[str, Any]]:
        """The first rank's timed steps; the time of each is the slowest rank's."""
        ranks = [[row for row in rank["rows"] if row["phase"] == "timed"] for rank in self.launched.ranks]
        return [{**rows[0], "step_ns": max(row["step_ns"] for row in rows)} for rows in zip(*ranks, strict=False)]


def _prepared(out: Path) -> Path:
    """An empty folder; what an earlier call left in it is removed, anything else refused."""
    ours = any(out.glob("run*/run.json")) or (out / "probe").is_dir()
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not ours)):
        raise LaunchError(
            "it is there, and not from an earlier `steptrace run`",
            where=out,
            expected="a folder that is new, empty, or such a run's",
            next_step="name another one with --out",
        )
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    return out


def _say(measured: Sequence[_Measured], out: Path, arguments: argparse.Namespace, predicted: _Predicted | None) -> None:
    """Write summary.json and the page, and say what was found."""
    first, command = measured[0], shlex.join(arguments.program)
    lines = [f"steptrace: {command}", *_timing(measured)]
    document: dict[str, Any] = {
        "runs": [one.run_dir / "run.json" for one in measured],
        "step_ms": statistics.median(_median_ms(one) for one in measured),
        "medians_ms": [_median_ms(one) for one in measured],
        "loader_wait_ms": _wait_ms(measured),
        "summary": None,
        "report": None,
        "predicted": None if predicted is None else predicted.to_json(),
        "kinds": [asdict(kind) for kind in kinds_by_time(_untroubled_ns(first))],
        "warnings": list(dict.fromkeys(warning for one in measured for warning in one.record.warnings)),
    }
    traces = [first.run_dir / name for name in first.record.traces]
    if traces:
        from steptrace.commands.analyze import write_analysis

        summary = write_analysis(traces, out)
        document["summary"] = out / "summary.json"
        kinds = kinds_by_time(_untroubled_ns(first))
        on_gpu = first.record.device == "cuda"
        # What is predicted has lines of its own.
        lines += [] if predicted and not on_gpu else _of_traces(summary, kinds, on_gpu=on_gpu, command=command)
        if not arguments.no_report:
            from steptrace.report.trace import page as trace_page

            of_gpu = None if predicted is None else (predicted.prediction, predicted.estimates)
            trace_page.write(summary, out / "report.html", title=command, predicted=of_gpu)
            document["report"] = out / "report.html"
            lines += [f"  {line}" for line in trace_page.in_words(summary).splitlines()]
            lines.append(str(out / "report.html"))
    lines += [] if predicted is None else predicted.lines(command)
    for warning in document["warnings"]:
        warn(warning)
    show(arguments, document, "\n".join([*lines, str(first.run_dir / "run.json")]))


def _median_ms(one: _Measured) -> float:
    return float(statistics.median(row["step_ns"] for row in one.timed)) / _NS_PER_MS


def spread(times: Sequence[float]) -> tuple[float, float]:
    """The times that 5 % and 95 % of the steps lie below, never beyond those that were measured."""
    found = statistics.quantiles(times, n=20, method="inclusive") if len(times) > 1 else [times[0]]
    return found[0], found[-1]


def _wait_ms(measured: Sequence[_Measured]) -> float | None:
    """The mean wait for data; None in a program without a DataLoader."""
    known = [row["wait_ns"] for one in measured for row in one.timed if row["batches"]]
    return statistics.mean(known) / _NS_PER_MS if known else None


def _timing(measured: Sequence[_Measured]) -> list[str]:
    """The step time with its spread, what a step consists of, and the wait for data."""
    medians = [_median_ms(one) for one in measured]
    first = measured[0]
    steps = [row["step_ns"] / _NS_PER_MS for one in measured for row in one.timed]
    low, high = spread(steps)
    where = first.record.environment.gpu or "CPU"
    ranks = first.record.world_size
    median, mean = statistics.median(medians), statistics.mean(steps)
    apart = f" (median; mean {fmt.duration_ms(mean)})" if max(mean, median) > DIFFERENT * min(mean, median) else ""
    step_ms, most_ms = fmt.step_time(median, low, high)
    head = f"  step {step_ms}{apart}, 5 % to 95 %: {most_ms}"
    runs = f"{len(measured)} runs, " if len(measured) > 1 else ""
    lines = [f"{head} ({runs}{len(steps)} timed steps, {where}{f', {ranks} ranks' if ranks > 1 else ''})"]
    if len(measured) > 1:
        lines.append(f"  medians of the runs: {', '.join(map(fmt.duration_ms, medians))}")
    lines += _kinds(first)
    typical = {name: statistics.mode(row[name] for row in first.timed) for name in ("batches", "backwards", "samples")}
    parts = [f"{typical['backwards']} backward passes" if typical["backwards"] != 1 else "1 backward pass"]
    if typical["batches"]:
        parts.append("1 batch" if typical["batches"] == 1 else f"{typical['batches']} batches")
        parts += [f"{typical['samples']} samples"] if typical["samples"] else []
    optimizers = ", ".join(f"{name} {count}" for name, count in first.launched.ranks[0]["optimizers"])
    lines.append(f"  each step: {', '.join(parts)}; optimizer steps seen in all: {optimizers or 'none seen'}")
    wait = _wait_ms(measured)
    if wait is not None:
        of = f"{fmt.duration_ms(wait)} of a mean step's {fmt.duration_ms(mean)} ({fmt.share(wait / mean)})"
        lines.append(f"  waiting for data: {of}")
    else:
        lines.append("  waiting for data: not measured, since no DataLoader was used")
    if first.launched.complete:
        lines.append("  stopped once it was measured: its final checkpoint, if any, was not written")
    return lines


def _untroubled_ns(one: _Measured) -> list[int]:
    """The times of the first rank's unprofiled steps, of the warm-up those after its first ones."""
    rows = [row["step_ns"] for row in one.launched.ranks[0]["rows"] if row["phase"] != "profiled"]
    return rows[FIRST_STEPS:]


def _kinds(one: _Measured) -> list[str]:
    """What makes some steps much longer than most, as far as times tell: how many there are, and their share."""
    kinds = kinds_by_time(_untroubled_ns(one))
    if len(kinds) < _SEVERAL:
        return []
    lines = [
        f"    {kind.steps} of {kind.of} steps{'' if kind.every is None else f' (one every {kind.every})'}: "
        f"{fmt.duration_ns(kind.typical)}, {fmt.share(kind.share)} of the time"
        for kind in kinds
    ]
    if kinds[-1].every is None:
        irregular = "    the long ones come at no regular distance"
        once = f"    one long step does not tell how often it comes: --steps {to_show_period(kinds[-1].of)}"
        lines.append(once if kinds[-1].steps == 1 else irregular)
    return lines


def _of_traces(summary: "Summary", kinds: Sequence[Kind], *, on_gpu: bool, command: str) -> list[str]:
    """GPU busy, and the syncs with their lines."""
    if not on_gpu:
        next_step = f"steptrace predict -- {_on_gpu(command)}"
        return [f"  syncs: not measured (no GPU); to predict them: {next_step} (or here: --gpu H100)"]
    trace = summary.traces[0]
    lines = [f"  GPU busy: {fmt.percent(trace.gpu_busy_pct)}"]
    syncs = trace.syncs
    lines.append(
        f"  syncs: {fmt.number(syncs.per_step)} per step{_of_kinds(trace, kinds)}"
        if syncs.per_step is not None
        else "  syncs: not measured"
    )
    return lines + sync_lines(syncs.sites, max(len(trace.steps), 1))


def _on_gpu(command: str) -> str:
    """The command with `cuda` where it names the CPU: a prediction follows what a program does on a GPU."""
    words = (re.sub(r"^(--?[\w-]*device=)?cpu$", r"\1cuda", word) for word in shlex.split(command))
    return shlex.join(words)


def _of_kinds(trace: "TraceSummary", kinds: Sequence[Kind]) -> str:
    """Where the profiled steps differ in their syncs: each one's, and the mean over steps as often as they come."""
    counts = trace.syncs.by_step or ()
    if len(set(counts)) < _SEVERAL:
        return ""
    text = f" in the mean of the {len(counts)} profiled steps ({', '.join(map(str, counts))})"
    of_kinds = per_step(kinds, [step.dur_ns for step in trace.steps], counts)
    if len(kinds) < _SEVERAL or None in of_kinds:
        return text
    total = sum(kind.steps * (count or 0) for kind, count in zip(kinds, of_kinds, strict=True))
    each = ", ".join(
        f"{fmt.number(count or 0)} in {kind.steps} of {kind.of} steps"
        for kind, count in zip(kinds, of_kinds, strict=True)
    )
    return f"{text}; {each}: {fmt.number(total / kinds[0].of)} per step in all"


def sync_lines(sites: "Sequence[SyncSite]", steps: int) -> list[str]:
    """The lines of a program with the most syncs in a step, one each: operators and phases are told on the page."""
    counts: Counter[str] = Counter()
    for site in sites:
        place = "no line of the program" if site.file is None else f"{site.file}:{site.line}"
        counts[f"{site.kind} at {place}  {site.code or ''}".rstrip()] += site.count
    shown = counts.most_common(_MOST_LINES)
    lines = [f"    {fmt.number(count / steps)} x {place}" for place, count in shown]
    if more := len(counts) - len(shown):
        lines.append(f"    {fmt.plural(more, 'more line')}: on the page, and in summary.json")
    return lines
