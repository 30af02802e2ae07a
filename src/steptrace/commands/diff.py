"""`steptrace diff`: what changed from one trace, or set of ranks, to another."""

import argparse
from pathlib import Path

from steptrace.commands.console import show, writing_to
from steptrace.output_folder import OutputFolder


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.description = (
        "Compare two PyTorch profiler traces, or two folders of ranks, per step: the step's parts, and which kernels, "
        "operators, syncs and lines changed. Writes diff.json and diff.html."
    )
    command.add_argument("a", help="trace file, or folder of one job's ranks: what to compare with")
    command.add_argument("b", help="trace file, or folder of one job's ranks: what is compared")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write to, made if missing")


def run(arguments: argparse.Namespace) -> int:
    """Write what changed and its page, say it in short, and return the exit code."""
    from steptrace.diff import diff, read_sides
    from steptrace.documents.base import write
    from steptrace.files import write_text
    from steptrace.report.diff import in_words, page_html

    out: Path = arguments.out
    page = out / "diff.html"
    with OutputFolder(out, ("diff.json", "diff.html"), by="steptrace diff") as folder:
        changes = diff(*read_sides([arguments.a], [arguments.b]))
        with writing_to(out):
            write(folder.file("diff.json"), changes)
            write_text(folder.file("diff.html"), page_html(changes))
    text = in_words(changes)
    document = {"diff": out / "diff.json", "report": page, "text": text}
    show(arguments, document, f"{text}\n{page}")
    return 0
