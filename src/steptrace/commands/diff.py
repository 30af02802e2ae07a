"""`steptrace diff`: what changed from one trace, set of ranks, or result of `steptrace run` to another."""

import argparse
from pathlib import Path

from steptrace.commands.analyze import are_snapshots, write_snapshots
from steptrace.commands.console import gpu_names, show, writing_to
from steptrace.documents.command_answers import DiffAnswer
from steptrace.errors import SteptraceError
from steptrace.exit_codes import ExitCode
from steptrace.output_folder import OutputFolder, folder_named_after


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.description = (
        "Compare two PyTorch profiler traces, two folders of ranks, or two folders that `steptrace run` wrote, per "
        "step: the step's parts, and which kernels, operators, syncs and lines changed; of results of `steptrace run` "
        "also unprofiled step times, predicted syncs and estimates. Writes diff.json and diff.html. Of two memory "
        "snapshots of PyTorch it says which lines hold more memory, in snapshot.json and report.html."
    )
    command.add_argument(
        "a",
        help="trace file, folder of one job's ranks, folder of `steptrace analyze` or `run`, or memory snapshot: the "
        "side to compare with",
    )
    command.add_argument("b", help="the same kinds of input; B is compared with A")
    command.add_argument(
        "--gpu",
        type=gpu_names,
        default=(),
        metavar="GPU[,GPU]",
        help="estimate both results of `steptrace run` on these; default: those of the runs, else H100",
    )
    command.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder to write to, made if missing; default: A-B-diff in the current one, by the names of both",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the differences and their page, print a summary, and return the exit code."""
    from steptrace.diff import diff, read_sides
    from steptrace.documents.base import write
    from steptrace.estimate.gpus import gpu_named
    from steptrace.files import write_text
    from steptrace.report.diff import in_words, page_html

    for name in arguments.gpu:  # before traces are read
        gpu_named(name)
    out: Path = arguments.out or folder_named_after([arguments.a, arguments.b], "diff")
    if are_snapshots([arguments.a, arguments.b]):
        return _run_snapshots(arguments, out)
    page = out / "diff.html"
    with OutputFolder(out, ("diff.json", "diff.html"), by="steptrace diff") as folder:
        changes = diff(*read_sides([arguments.a], [arguments.b]), arguments.gpu)
        with writing_to(out):
            write(folder.file("diff.json"), changes)
            write_text(folder.file("diff.html"), page_html(changes))
    text = in_words(changes)
    answer = DiffAnswer(diff=str(out / "diff.json"), report=str(page), text=text)
    show(arguments, answer, f"{text}\n{page}")
    return ExitCode.DONE


def _run_snapshots(arguments: argparse.Namespace, out: Path) -> int:
    """Write what grew from one memory snapshot to another, print a summary, and return the exit code."""
    from steptrace.report.snapshot import in_words

    if arguments.gpu:
        raise SteptraceError(
            "--gpu is for results of `steptrace run`", where=arguments.a, expected="no memory snapshots"
        )
    document = write_snapshots([arguments.a, arguments.b], out, by="steptrace diff")
    text = in_words(document)
    answer = DiffAnswer(snapshot=str(out / "snapshot.json"), report=str(out / "report.html"), text=text)
    show(arguments, answer, f"{text}\n{answer.report}")
    return ExitCode.DONE
