"""`steptrace run -- COMMAND`: starts any program that trains with PyTorch, measures its steps, prints the result."""

import argparse
import shlex
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from steptrace.commands.analyze import ANALYSIS, step_excerpt_in, write_analysis
from steptrace.commands.console import gpu_names, minutes, not_negative, positive, say, show, warn, writing_to
from steptrace.commands.estimates import estimates
from steptrace.commands.measured import MeasuredProgram, of_traces, on_gpu_command, timing
from steptrace.commands.prediction_text import text_of
from steptrace.documents.command_answers import MeasuredKind, RunAnswer, predict_answer
from steptrace.documents.estimate import Estimate
from steptrace.documents.prediction import PredictedStep
from steptrace.errors import LaunchError, SteptraceError
from steptrace.estimate.gpus import Gpu, gpu_named
from steptrace.exit_codes import ExitCode
from steptrace.files import scratch_folder
from steptrace.jobs.launch import launch
from steptrace.launch.result import Launched, ended, fault, require_steps, write_results
from steptrace.launch.settings import LaunchSettings
from steptrace.output_folder import OutputFolder, refuse_other_than_folder
from steptrace.run_folder import PREDICTION_FILE, write_document
from steptrace.words.compilations import compilation_lines
from steptrace.words.lines import TextLine

#: The folder of memory snapshots in a result.
_SNAPSHOTS: Final = "snapshots/"
#: A prediction of the program on a virtual GPU, and its estimates.
_Predicted = tuple[PredictedStep, list[Estimate]]


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.description = (
        "Start any program that trains with PyTorch, unchanged; each optimizer step ends a step. After the "
        "warm-up the next steps are timed, then a few profiled. Then the program is stopped, so its final checkpoint "
        "is not written. Without a GPU it is started once more, for six steps on a virtual GPU, and its syncs are "
        "predicted. Exit code 0 if all steps were measured, 1 if the program ended before, "
        "2 if nothing could be measured. With --capture the program runs to its own end and exit code."
    )
    command.add_argument("--steps", type=positive, default=30, metavar="N", help="number of timed steps; default: 30")
    command.add_argument(
        "--warmup", type=positive, default=10, metavar="N", help="warm-up steps before them; default: 10"
    )
    command.add_argument(
        "--profile", type=not_negative, default=3, metavar="N", help="profiled steps after them; 0: none; default: 3"
    )
    command.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder to write to: new, empty, or from an earlier run, whose files are replaced; default: "
        "steptrace-run, or captures",
    )
    command.add_argument(
        "--timeout-minutes", type=minutes, metavar="M", help="interrupt the program after M minutes, as Ctrl-C does; "
        "steps that were timed until then count; the start that predicts its syncs may take as long; default: never",
    )  # fmt: skip
    command.add_argument(
        "--capture", action="store_true", help="measure nothing: the program runs to its own end and exit code, and "
        "`steptrace capture PID` records its next steps whenever it is asked to, into DIR",
    )  # fmt: skip
    command.add_argument(
        "--memory-snapshot", action="store_true", help="also record each allocation on a GPU with its line, and write "
        "snapshots into DIR/snapshots: at the end of the steps, and when an allocation fails. Allocations take some "
        "microseconds longer. `steptrace analyze` reads them",
    )  # fmt: skip
    predicted = command.add_mutually_exclusive_group()
    predicted.add_argument(
        "--gpu", type=gpu_names, default=(), metavar="GPU[,GPU]", help="also estimate its step on these, such as "
        "H100,L4; on a machine with a GPU the program is then started once more, too",
    )  # fmt: skip
    predicted.add_argument("--no-predict", action="store_true", help="do not start it once more to predict its syncs")
    command.add_argument("program", nargs="+", metavar="COMMAND", help="the program and its arguments, after --")


def run(arguments: argparse.Namespace) -> int:
    """Run the program, write the results, print a summary, and return the exit code."""
    if arguments.capture:
        for name in ("timeout_minutes", "memory_snapshot"):
            if getattr(arguments, name):
                option = name.replace("_", "-")
                raise LaunchError(f"--{option} is not for --capture", expected="a program that is measured")
        return _run_capturable(arguments)
    gpus = [gpu_named(name) for name in arguments.gpu]  # before anything runs
    out: Path = arguments.out or Path("steptrace-run")
    writes = ("run0/", _SNAPSHOTS, PREDICTION_FILE, *ANALYSIS)
    with OutputFolder(out, writes, by="steptrace run", whole=True) as folder:
        return _run(arguments, folder, gpus)


def _run(arguments: argparse.Namespace, folder: OutputFolder, gpus: Sequence[Gpu]) -> int:
    """Measure the program, write its results to a folder, and return the exit code."""
    with folder.scratch() as probe, folder.scratch() as staged:
        counts = (arguments.warmup, arguments.steps, arguments.profile)
        limit_s = None if arguments.timeout_minutes is None else 60 * arguments.timeout_minutes
        settings = LaunchSettings(
            str(probe.absolute()), "measure", *counts, limit_s=limit_s, memory_snapshot=arguments.memory_snapshot
        )
        program = {"command": arguments.program, "cwd": str(Path.cwd())}
        output = sys.stderr if arguments.json else None
        launched = launch(arguments.program, settings, output=output, status=say)
        # First, since of a program that runs out of memory in its first step only the snapshot is left.
        snapshots = _keep_snapshots(probe, folder) if arguments.memory_snapshot else []
        require_steps(launched, arguments.program)
        fault_report = fault(launched)
        with writing_to(folder.path):
            record = write_results(launched, staged, program)
            # Earlier results are removed only now that this call has some: a typo in the command costs nothing.
            measured = MeasuredProgram(launched, record, folder.put(staged, "run0"))
            folder.remove_earlier(PREDICTION_FILE, *ANALYSIS, *([] if snapshots else [_SNAPSHOTS]))
    _warn_of_fault(launched, fault_report)
    on_gpu = measured.record.device == "cuda"
    wanted = bool(gpus) or not (on_gpu or arguments.no_predict)
    # After Ctrl-C the program is not started once more, even if it has caught that and ended well.
    wanted = wanted and not launched.failed and not launched.interrupted
    predicted = _predicted(arguments, gpus, on_gpu=on_gpu) if wanted else None
    if predicted is not None:
        with writing_to(folder.path):
            prediction = replace(predicted[0], gpus=tuple(gpu.name for gpu in gpus))
            write_document(folder.file(PREDICTION_FILE).parent, prediction)
    _say(measured, folder, arguments, predicted, snapshots)
    return ExitCode.DONE if launched.complete else ExitCode.NOT_HELD


def _keep_snapshots(probe: Path, folder: OutputFolder) -> list[Path]:
    """Move the program's memory snapshots to the results, print which command reads them, and return their paths."""
    snapshots = sorted(probe.glob("*.pickle"))
    if not snapshots:
        warn("no memory snapshot was written: the program used no GPU, or ended before it did")
        return []
    with writing_to(folder.path), folder.scratch() as staged:
        for file in snapshots:
            file.replace(staged / file.name)
        kept = folder.put(staged, _SNAPSHOTS.rstrip("/"))
    files = [kept / file.name for file in snapshots]
    for file in files:
        read_it = ["steptrace", "analyze", str(file), "--out", str(file.with_suffix(""))]
        say(f"memory snapshot: {shlex.join(read_it)}")
    return files


def _predicted(arguments: argparse.Namespace, gpus: Sequence[Gpu], *, on_gpu: bool) -> _Predicted | None:
    """The prediction of the program, started again on a virtual GPU; None, with a warning, if that fails."""
    from steptrace.commands.follow import WARMUP, follow_command

    command = arguments.program if on_gpu else on_gpu_command(arguments.program)
    say(f"to predict its syncs the program is started once more, on a virtual GPU: {shlex.join(command)}")
    try:
        limit_s = None if arguments.timeout_minutes is None else 60 * arguments.timeout_minutes
        prediction = follow_command(command, warmup=WARMUP, limit_s=limit_s).prediction
        problem = "" if prediction and prediction.ran_on_gpu else "nothing ran on the virtual GPU"
    except SteptraceError as error:
        prediction = None
        problem = error.what
    if prediction is None or problem:
        warn(f"no syncs are predicted: {problem}; to see more: steptrace predict -- {shlex.join(command)}")
        return None
    return prediction, estimates({None: prediction}, gpus)


def _run_capturable(arguments: argparse.Namespace) -> int:
    """Run the program to its end with a probe that answers `steptrace capture`, and return its exit code."""
    captures: Path = (arguments.out or Path("captures")).absolute()
    refuse_other_than_folder(captures)
    with scratch_folder() as scratch:
        settings = LaunchSettings(scratch, "capture", captures=str(captures))
        launched = launch(arguments.program, settings)
        report = fault(launched)
        _warn_of_fault(launched, report)
        try:
            # A signal ends a program without a record of its ranks.
            is_by_signal = not launched.ranks and (launched.interrupted or launched.stepped)
            if report is None and not is_by_signal:
                require_steps(launched, arguments.program)
        except LaunchError as error:
            warn(f"the program could not be captured: {error}")
    return launched.exit_code if launched.exit_code >= 0 else 128 - launched.exit_code


def _warn_of_fault(launched: Launched, report: str | None) -> None:
    if report is not None:
        warn(f"{ended(launched)}: {report}")


def _say(
    measured: MeasuredProgram,
    folder: OutputFolder,
    arguments: argparse.Namespace,
    predicted: _Predicted | None,
    snapshots: Sequence[Path],
) -> None:
    """Write summary.json and the page, and print the result."""
    command = shlex.join(arguments.program)
    summary = None
    out = folder.path
    traces = [measured.run_dir / name for name in measured.record.traces]
    on_gpu = measured.record.device == "cuda"
    if traces:
        summary = write_analysis(traces, folder, on_gpu=on_gpu)
    lines: list[str | TextLine] = [f"steptrace: {command}", *timing(measured, summary)]
    result = RunAnswer(
        run=str(measured.run_dir / "run.json"),
        step_ms=statistics.median(measured.steps_ms),
        loader_wait_ms=measured.wait_ms,
        summary=None if summary is None else str(out / "summary.json"),
        report=None if summary is None else str(out / "report.html"),
        predicted=None if predicted is None else predict_answer(*predicted),
        kinds=tuple(MeasuredKind(**asdict(kind)) for kind in measured.kinds),
        compiled=measured.record.compiled,
        memory_snapshots=tuple(map(str, snapshots)),
        warnings=tuple(dict.fromkeys(measured.record.warnings)),
    )
    lines += compilation_lines(measured.record.compiled)
    if summary is not None:
        # The prediction's lines follow below.
        lines += [] if predicted and not on_gpu else of_traces(summary, on_gpu=on_gpu, command=arguments.program)
        from steptrace.report.trace import page as trace_page
        from steptrace.report.trace.answer import answer

        with writing_to(folder.path):
            excerpt = step_excerpt_in(folder)
            trace_page.write(summary, folder.file("report.html"), command, predicted, excerpt)
        lines += [TextLine(f"  {line.text}", line.look) for line in answer(summary, predicted)]
        lines.append(str(out / "report.html"))
    if predicted is not None:
        # `--steps` of `run` counts measured steps. Only `steptrace predict` can be asked for more predicted ones.
        lines += text_of(command, *predicted, more_steps="steptrace predict --steps")
    for warning in result.warnings:
        warn(warning)
    show(arguments, result, [*lines, result.run])
