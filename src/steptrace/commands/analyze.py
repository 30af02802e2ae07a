"""`steptrace analyze`: figures and a page from any PyTorch traces."""

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from steptrace.commands.console import Progress, show, warn, writing_to
from steptrace.errors import SteptraceError
from steptrace.files import write_bytes
from steptrace.format import plural, size_bytes
from steptrace.output_folder import OutputFolder

if TYPE_CHECKING:
    from steptrace.documents.quality import CheckCode
    from steptrace.documents.summary import Summary

#: What an analysis writes to its folder.
ANALYSIS: Final = ("summary.json", "tables/", "counters/", "report.html")


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.description = (
        "Read PyTorch profiler traces (.json or .json.gz; files or folders; one or more ranks) and write "
        "summary.json, tables/ and report.html. What an earlier call wrote to the same folder is replaced."
    )
    command.add_argument("trace", nargs="+", help="trace file, or folder of trace files")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write to, made if missing")
    command.add_argument("--no-report", action="store_true", help="leave report.html out")
    command.add_argument(
        "--excerpt",
        type=Path,
        metavar="FILE.json.gz",
        help="also write one step of the trace as a small trace for Perfetto",
    )
    command.add_argument("--step", type=int, metavar="N", help="the excerpt's step; default: the median one")
    command.add_argument(
        "--counters",
        action="store_true",
        help="also write counters/: each trace with tracks of queue length and memory bandwidth, for Perfetto",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the figures and the page, say in short what they hold, and return the exit code."""
    out: Path = arguments.out
    if arguments.excerpt is not None and len(arguments.trace) > 1:
        raise SteptraceError("--excerpt needs one trace file", where=arguments.excerpt, next_step="name one trace")
    if arguments.step is not None and arguments.excerpt is None:
        raise SteptraceError("--step needs --excerpt", next_step="add --excerpt FILE.json.gz")
    lines: list[str] = []
    with OutputFolder(out, ANALYSIS, by="steptrace analyze") as folder:
        summary = write_analysis(arguments.trace, folder, counters=arguments.counters)
        if not arguments.no_report:
            from steptrace.report.trace import page as trace_page
            from steptrace.report.trace.words import in_words

            with writing_to(out):
                trace_page.write(summary, folder.file("report.html"))
            lines = [in_words(summary), str(out / "report.html")]
    excerpt = None
    if arguments.excerpt is not None:
        from steptrace.trace.excerpt import write_excerpt

        with writing_to(arguments.excerpt):
            excerpt = write_excerpt(Path(arguments.trace[0]), arguments.excerpt, arguments.step)
        size = f"{plural(excerpt.events, 'event')}, {size_bytes(excerpt.size)}"
        lines.append(f"{excerpt.path}: step {excerpt.step}, {size}")
    document = {
        "summary": out / "summary.json",
        "report": None if arguments.no_report else out / "report.html",
        "excerpt": None if excerpt is None else asdict(excerpt),
        "warnings": [*summary.warnings, *(text for entry in summary.traces for text in entry.quality.warnings)],
    }
    show(arguments, document, "\n".join([*lines, str(out / "summary.json")]))
    return 0


def write_analysis(
    traces: Sequence[str | Path], folder: OutputFolder, *, counters: bool = False, on_gpu: bool = True
) -> "Summary":
    """Write summary.json and the tables of some traces to a folder, say their warnings, and return the summary.

    What an earlier analysis wrote there is removed once the traces are read.

    Args:
        traces: files, or folders of them.
        folder: where to write; it writes `ANALYSIS`.
        counters: also write traces with counters.
        on_gpu: whether GPU work is expected; elsewhere its absence is no warning.

    Raises:
        SteptraceError: a trace cannot be read, or the folder cannot be written.
    """
    # What lives is columns, and few cycles are made: looking for them takes a tenth of a small trace's time.
    gc.set_threshold(200_000, 50, 50)
    # Arrow's own allocator would keep what it took, beside the one that everything else is taken from.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from steptrace.analysis import summarize, write_counters
    from steptrace.findings import with_trace_findings
    from steptrace.words.quality import warnings

    with writing_to(folder.path), folder.scratch() as scratch:
        summary, read = summarize(traces, tables=scratch / "tables", progress=Progress("traces read"))
        summary = with_trace_findings(summary)
        if counters:
            write_counters(read, scratch / "counters")
        folder.put(scratch / "tables", "tables")
        folder.remove_earlier("counters/", "report.html")
        if (scratch / "counters").is_dir():
            folder.put(scratch / "counters", "counters")
        write_bytes(folder.file("summary.json"), msgspec.json.format(msgspec.json.encode(summary), indent=1))
    for warning in summary.warnings:
        warn(warning)
    for entry in summary.traces:
        expected: tuple[CheckCode, ...] = () if on_gpu or entry.gpu.activities else ("gpu_work",)
        for warning in warnings(entry.quality, without=expected):
            print(f"{entry.path}: warning: {warning}", file=sys.stderr)  # noqa: T201
    return summary
