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

from steptrace.commands.console import Progress, bandwidth, end_status, positive, show, status, warn, writing_to
from steptrace.documents.command_answers import AnalyzeAnswer, WrittenExcerpt
from steptrace.errors import SteptraceError
from steptrace.exit_codes import ExitCode
from steptrace.files import write_bytes
from steptrace.format import plural, size_bytes
from steptrace.output_folder import OutputFolder, folder_named_after
from steptrace.words.lines import TextLine

if TYPE_CHECKING:
    from steptrace.documents.quality import CheckCode
    from steptrace.documents.snapshot import MemorySnapshots
    from steptrace.documents.summary import Summary
    from steptrace.trace.excerpt import Excerpt

#: The median step of a single trace as a small trace, which its page offers for download.
STEP_EXCERPT: Final = "step.json.gz"
#: The files that an analysis writes to its folder.
ANALYSIS: Final = ("summary.json", "tables/", "counters/", "report.html", STEP_EXCERPT)
#: The files that an analysis of memory snapshots writes.
SNAPSHOTS: Final = ("snapshot.json", "report.html")

#: A warning that more traces share is printed once.
_MOST_WARNED: Final = 3


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.description = (
        "Read PyTorch profiler traces (.json or .json.gz; files or folders; one or more ranks) and write "
        "summary.json, tables/ and report.html. What an earlier call wrote to the same folder is replaced. "
        "Memory snapshots of PyTorch (files of torch.cuda.memory._dump_snapshot) are read too: snapshot.json and "
        "report.html then say what is live at the peak by line and, of several snapshots, what grew."
    )
    command.add_argument(
        "trace",
        nargs="+",
        help="trace file, folder of trace files (excerpts beside them are passed over), or memory snapshot",
    )
    command.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder to write to, made if missing; default: NAME-analysis in the current one, by the name of the trace",
    )
    command.add_argument(
        "--limit",
        type=positive,
        metavar="N",
        help="read only the first N traces, in the given order; those of a folder are sorted by name",
    )
    command.add_argument("--no-report", action="store_true", help="leave report.html out")
    command.add_argument(
        "--excerpt",
        type=Path,
        metavar="FILE.json.gz",
        help="also write one step as a small trace for Perfetto, with its critical path on a separate track; "
        "of several ranks one file on one clock",
    )
    command.add_argument(
        "--step", type=int, metavar="N", help="the step in the excerpt; default: the step of median length"
    )
    command.add_argument(
        "--bandwidth",
        type=bandwidth,
        metavar="GB/S",
        help="bus bandwidth between the ranks, for the expected time of all-reduces; default: NCCL's published times "
        "on this GPU, or on one of the same kind of link",
    )
    command.add_argument(
        "--counters",
        action="store_true",
        help="also write counters/: each trace with tracks of queue length and memory bandwidth, for Perfetto",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the figures and the page, print a summary, and return the exit code."""
    out: Path = arguments.out or folder_named_after(arguments.trace, "analysis")
    if arguments.step is not None and arguments.excerpt is None:
        raise SteptraceError("--step needs --excerpt", next_step="add --excerpt FILE.json.gz")
    if are_snapshots(arguments.trace):
        return _run_snapshots(arguments, out)
    lines: list[str | TextLine] = []
    with OutputFolder(out, (*ANALYSIS, *SNAPSHOTS), by="steptrace analyze") as folder:
        options = {"limit": arguments.limit, "counters": arguments.counters, "for_page": not arguments.no_report}
        summary = write_analysis(arguments.trace, folder, **options, bus_bytes_per_s=arguments.bandwidth)
        if not arguments.no_report:
            from steptrace.report.trace import page as trace_page
            from steptrace.report.trace.answer import answer

            status("writing the page")
            with writing_to(out):
                trace_page.write(summary, folder.file("report.html"), excerpt=step_excerpt_in(folder))
            lines = [*answer(summary), str(out / "report.html")]
    excerpt = None
    if arguments.excerpt is not None:
        with writing_to(arguments.excerpt):
            excerpt = _write_excerpt(summary, arguments.excerpt, arguments.step)
        size = f"{plural(excerpt.events, 'event')}, {size_bytes(excerpt.size)}"
        lines.append(f"{excerpt.path}: step {excerpt.step}, {size}")
    result = AnalyzeAnswer(
        summary=str(out / "summary.json"),
        report=None if arguments.no_report else str(out / "report.html"),
        excerpt=None if excerpt is None else WrittenExcerpt(**asdict(excerpt) | {"path": str(excerpt.path)}),
        warnings=(*summary.warnings, *(text for entry in summary.traces for text in entry.quality.warnings)),
    )
    show(arguments, result, [*lines, str(out / "summary.json")])
    return ExitCode.DONE


def _write_excerpt(summary: "Summary", out: Path, step: int | None) -> "Excerpt":
    """Write the excerpt of one trace, or of the ranks of one job on one clock.

    Raises:
        SteptraceError: the traces are not the ranks of one job, or ranks share no collective that aligns their clocks.
    """
    from steptrace.analysis.marks import critical_path_marks
    from steptrace.trace.excerpt import RankFile, write_excerpt, write_ranks_excerpt

    paths = [Path(entry.path) for entry in summary.traces]
    if len(paths) == 1:
        return write_excerpt(paths[0], out, step, marks=critical_path_marks)
    if summary.ranks is None:
        raise SteptraceError(
            "--excerpt of several traces needs the ranks of one job",
            where=out,
            expected="traces that name different ranks",
            next_step="name one trace",
        )
    ranks = []
    for path, wait in zip(paths, summary.ranks.waits, strict=True):
        if wait.clock_offset_ns is None:
            raise SteptraceError(
                f"the clock of rank {wait.rank} cannot be aligned: it shares no collective with another rank",
                where=path,
                next_step="name one trace, or leave this rank out",
            )
        ranks.append(RankFile(path, wait.rank, wait.clock_offset_ns))
    return write_ranks_excerpt(ranks, out, step, marks=critical_path_marks)


def are_snapshots(paths: Sequence[str | Path]) -> bool:
    """Whether some files are memory snapshots of PyTorch.

    Raises:
        SteptraceError: some are and some are not.
    """
    from steptrace.snapshot.kind import is_snapshot

    snapshots = [str(path) for path in paths if is_snapshot(Path(path))]
    if snapshots and len(snapshots) < len(paths):
        raise SteptraceError(
            "memory snapshots and traces cannot be read together",
            where=snapshots[0],
            next_step="analyze each kind in a call and a folder of its own",
        )
    return bool(snapshots)


def _run_snapshots(arguments: argparse.Namespace, out: Path) -> int:
    """Write the figures of memory snapshots and their page, print a summary, and return the exit code."""
    for name in ("excerpt", "step", "counters", "limit", "bandwidth"):
        value = getattr(arguments, name)
        if value is not None and value is not False:  # step 0 is a step
            raise SteptraceError(
                f"--{name} is for traces", where=arguments.trace[0], expected="a trace, not a snapshot"
            )
    document = write_snapshots(arguments.trace, out, by="steptrace analyze", report=not arguments.no_report)
    from steptrace.report.snapshot import in_words

    answer = AnalyzeAnswer(
        snapshot=str(out / "snapshot.json"), report=None if arguments.no_report else str(out / "report.html")
    )
    written = [path for path in (answer.snapshot, answer.report) if path is not None]
    show(arguments, answer, "\n".join([in_words(document), *written]))
    return ExitCode.DONE


def write_snapshots(paths: Sequence[str | Path], out: Path, *, by: str, report: bool = True) -> "MemorySnapshots":
    """Write snapshot.json, and with `report` the page, of memory snapshots to a folder; return the content.

    Args:
        paths: the files; growth is from the first to the last.
        out: the folder.
        by: the command that writes.
        report: whether a page is written.
    """
    from steptrace.documents.base import write
    from steptrace.files import write_text
    from steptrace.report.snapshot import page_html
    from steptrace.snapshot.live import summarize_snapshots

    with OutputFolder(out, (*ANALYSIS, *SNAPSHOTS, "diff.json", "diff.html"), by=by) as folder:
        document = summarize_snapshots([Path(path) for path in paths])
        with writing_to(out):
            folder.remove_earlier(*ANALYSIS, *SNAPSHOTS)
            write(folder.file("snapshot.json"), document)
            if report:
                write_text(folder.file("report.html"), page_html(document))
    return document


def step_excerpt_in(folder: OutputFolder) -> Path | None:
    """The file with the median step of the only trace; None if there are several traces, or if nothing ran."""
    file = folder.path / STEP_EXCERPT
    return file if file.is_file() else None


def write_analysis(  # noqa: PLR0913 - one for each option
    traces: Sequence[str | Path],
    folder: OutputFolder,
    *,
    limit: int | None = None,
    counters: bool = False,
    on_gpu: bool = True,
    for_page: bool = True,
    bus_bytes_per_s: float | None = None,
) -> "Summary":
    """Write summary.json and the tables of some traces to a folder, print warnings, and return the summary.

    The files of an earlier analysis are removed once the traces are read.

    Args:
        traces: files, or folders of them.
        folder: where to write; it writes `ANALYSIS`.
        limit: the number of traces to read, the first ones; None: all.
        counters: also write traces with counters.
        on_gpu: whether GPU work is expected; elsewhere its absence is no warning.
        for_page: whether a page will be made of it: it carries the step of a single trace, `STEP_EXCERPT`.
        bus_bytes_per_s: bus bandwidth between the ranks, where it is known.

    Raises:
        SteptraceError: a trace cannot be read, or the folder cannot be written.
    """
    _tune_process()
    from steptrace.analysis import summarize, write_counters
    from steptrace.findings import with_trace_findings

    with writing_to(folder.path), folder.scratch() as scratch:
        status("reading traces")
        progress = Progress("traces read", shorter="--limit N reads the first N; or name the files that matter")
        summary, read = summarize(
            traces,
            limit=limit,
            tables=scratch / "tables",
            excerpt=scratch / STEP_EXCERPT if for_page else None,
            progress=progress,
            bus_bytes_per_s=bus_bytes_per_s,
        )
        summary = with_trace_findings(summary)
        if counters:
            write_counters(read, scratch / "counters")
        folder.put(scratch / "tables", "tables")
        folder.remove_earlier("counters/", STEP_EXCERPT, *SNAPSHOTS)
        if (scratch / STEP_EXCERPT).is_file():
            write_bytes(folder.file(STEP_EXCERPT), (scratch / STEP_EXCERPT).read_bytes())
        if (scratch / "counters").is_dir():
            folder.put(scratch / "counters", "counters")
        write_bytes(folder.file("summary.json"), msgspec.json.format(msgspec.json.encode(summary), indent=1))
    end_status()
    for warning in summary.warnings:
        warn(warning)
    _print_trace_warnings(summary, on_gpu=on_gpu)
    return summary


def _tune_process() -> None:
    """Set this process up for many tables: few garbage collections, one allocator, names of columns in Python."""
    # Columns are not garbage and few cycles are made: collecting garbage takes a tenth of a small trace's time.
    gc.set_threshold(200_000, 50, 50)
    # Arrow's own allocator would keep the memory that it took, in addition to what the process's allocator keeps.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    # Names of columns are texts, too: kept by Arrow, each of the many small tables of a trace takes a quarter longer.
    # Where pandas is in use already, the setting is not ours to change, and tables of both kinds would be mixed.
    if "pandas" not in sys.modules:
        import pandas as pd

        pd.set_option("mode.string_storage", "python")


def _print_trace_warnings(summary: "Summary", *, on_gpu: bool) -> None:
    """Print the warnings on single traces to stderr; missing GPU work is one only if it is expected."""
    from steptrace.words.notes import trace_warnings

    paths: dict[str, list[str]] = {}
    for entry in summary.traces:
        expected: tuple[CheckCode, ...] = () if on_gpu or entry.gpu.activities else ("gpu_work",)
        for warning in trace_warnings(entry.quality, without=expected):
            paths.setdefault(warning, []).append(entry.path)
    for warning, warned in paths.items():
        shown = warned if len(warned) <= _MOST_WARNED else [f"{warned[0]} and {len(warned) - 1} more"]
        for path in shown:
            print(f"{path}: warning: {warning}", file=sys.stderr)  # noqa: T201
