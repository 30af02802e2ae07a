"""`steptrace diff`: what changed from one trace, set of ranks, or result of `steptrace run` to another."""

import argparse
from pathlib import Path

from steptrace.commands.console import gpu_names, show, writing_to
from steptrace.output_folder import OutputFolder


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.description = (
        "Compare two PyTorch profiler traces, two folders of ranks, or two folders that `steptrace run` wrote, per "
        "step: the step's parts, and which kernels, operators, syncs and lines changed; of results of `steptrace run` "
        "also unprofiled step times, predicted syncs and estimates. Writes diff.json and diff.html."
    )
    command.add_argument(
        "a", help="trace file, folder of one job's ranks, or folder of `steptrace run`: what to compare with"
    )
    command.add_argument("b", help="the same: what is compared")
    command.add_argument(
        "--gpu",
        type=gpu_names,
        default=(),
        metavar="GPU[,GPU]",
        help="estimate both results of `steptrace run` on these; default: those of the runs, else H100",
    )
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write to, made if missing")


def run(arguments: argparse.Namespace) -> int:
    """Write what changed and its page, say it in short, and return the exit code."""
    from steptrace.diff import diff, read_sides
    from steptrace.documents.base import write
    from steptrace.estimate.gpus import gpu_named
    from steptrace.files import write_text
    from steptrace.report.diff import in_words, page_html

    for name in arguments.gpu:  # before traces are read
        gpu_named(name)
    out: Path = arguments.out
    page = out / "diff.html"
    with OutputFolder(out, ("diff.json", "diff.html"), by="steptrace diff") as folder:
        changes = diff(*read_sides([arguments.a], [arguments.b]), arguments.gpu)
        with writing_to(out):
            write(folder.file("diff.json"), changes)
            write_text(folder.file("diff.html"), page_html(changes))
    text = in_words(changes)
    document = {"diff": out / "diff.json", "report": page, "text": text}
    show(arguments, document, f"{text}\n{page}")
    return 0
