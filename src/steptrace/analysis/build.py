"""Builds the content of summary.json: an entry for each trace, and one for all ranks together."""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from steptrace.analysis import overview
from steptrace.analysis.common.analysis import Analysis
from steptrace.analysis.common.gpu_time import device_times, gpu_time
from steptrace.analysis.common.launches import launches
from steptrace.analysis.common.steps import is_training
from steptrace.analysis.communication import ranks as across_ranks
from steptrace.analysis.communication.all_reduce import all_reduce, reduce_passes
from steptrace.analysis.communication.collectives import collectives
from steptrace.analysis.copies import series
from steptrace.analysis.critical_path.measure import critical_path
from steptrace.analysis.idle import host_gaps, idle
from steptrace.analysis.input import input_wait
from steptrace.analysis.kernels.formats import precision_of
from steptrace.analysis.kernels.measure import most_frequent, placement
from steptrace.analysis.memory.record import memory, memory_tables
from steptrace.analysis.overview import step_figures, step_parts
from steptrace.analysis.program import program
from steptrace.analysis.quality import quality
from steptrace.analysis.syncs import syncs
from steptrace.analysis.tables import OF_SUBJECTS, tables_of, write_all
from steptrace.analysis.timeline.measure import shown_timeline
from steptrace.compiled import trim_heap
from steptrace.documents.column import subjects_of
from steptrace.documents.gpu_time import StepTime, TemporalRow
from steptrace.documents.kernels import KernelName, KernelType
from steptrace.documents.labels import Label, OptimizerCall, Section
from steptrace.documents.overview import TopOperator
from steptrace.documents.run import capture_of
from steptrace.documents.summary import Summary, TraceSummary
from steptrace.trace.bounds import path_text
from steptrace.trace.find import find_traces
from steptrace.trace.link import read_trace
from steptrace.trace.model import Trace, emptied
from steptrace.trace.parallel import read_each
from steptrace.trace.rows import TABLES
from steptrace.trace.source import SourceLines, load_source_lines

#: Tables that nothing here reads again: they are written at once, if at all, and freed.
_ONLY_WRITTEN = ("call_tree", "critical_path", "memory_blocks")

#: Columns of the trace's own tables, likewise.
_ONLY_WRITTEN_COLUMNS = {
    "ops": ["external_id", "sequence"],
    "launches": ["correlation", "external_id"],
    "kernels": ["correlation"],
}

#: Tables that `write_counters` reads.
_FOR_COUNTERS = ("queue_lengths", "copy_rates")

#: Tables that neither `write_counters` nor the comparison of ranks reads.
_NOT_COMPARED = ("ops", "launches", "frames", "memory", "syncs")

#: How many labels summary.json lists; the table `annotation_times` has all.
MOST_LABELS = 100
#: The same for operators.
MOST_OPERATORS = 10


def analyze(path: Path) -> Analysis:
    """Read one trace and compute every table.

    Raises:
        TraceError: the trace, or a file recorded beside it, cannot be read.
    """
    return analyze_trace(path, read_trace(path), load_source_lines(path))


def analyze_trace(
    path: Path, trace: Trace, lines: SourceLines | None = None, *, folder: Path | None = None
) -> Analysis:
    """Compute every table of a trace that has been read.

    With `folder` each is written there as soon as it is made, and freed if nothing here reads it again.
    """
    device, lines = trace.devices[0] if trace.devices else None, lines or SourceLines()
    tables: dict[str, pd.DataFrame] = {}

    def add(group: dict[str, pd.DataFrame]) -> None:
        if folder is not None:
            write_all(group, folder)
            group = {name: table for name, table in group.items() if name not in _ONLY_WRITTEN}
        tables.update(group)

    add(memory_tables(path, trace, lines))
    if folder is not None:
        write_all({name: getattr(trace, name) for name in TABLES}, folder)
        trace = _without_written(trace)
        trim_heap()
    for group in tables_of(trace, device, lines):
        add(group)
    return Analysis(path, trace if folder is None else emptied(trace, "frames"), device, tables)


def _without_written(trace: Trace) -> Trace:
    """A trace without the columns that nothing reads once the memory's tables are made and its own are written."""
    lean = {name: getattr(trace, name).drop(columns=columns) for name, columns in _ONLY_WRITTEN_COLUMNS.items()}
    return emptied(replace(trace, **lean), "memory")


def summarize(paths: Iterable[str | Path], *, tables: Path | None = None) -> tuple[Summary, list[Analysis]]:
    """The summary of all traces behind `paths` (files or folders), by rank, and the analyses behind it.

    Args:
        paths: files, or folders of them.
        tables: a folder that every table is written to, as `trace<k>/<name>.parquet`, k counting as in the summary,
            and the tables across ranks as `ranks/<name>.parquet`. The process that reads a trace writes its tables,
            and keeps little more than the figures compared across ranks, so memory does not grow with the number of
            traces.

    Raises:
        TraceError: a path is missing, or a trace cannot be read.
        OSError: a table cannot be written.
    """
    files = find_traces(paths)
    folders = None if tables is None else {path: tables / f".{place}" for place, path in enumerate(files)}
    done = read_each(partial(_analyze_and_summarize, folders=folders), files)
    done.sort(key=lambda pair: (pair[0].trace.rank is None, pair[0].trace.rank or 0, str(pair[0].path)))
    analyses = [analysis for analysis, _ in done]
    repeated = _repeated_ranks(analyses)
    summaries, ranks = tuple(summary for _, summary in done), None
    of_ranks = across_ranks.tables(analyses) if len(analyses) > 1 and not repeated else None
    if of_ranks is not None:
        ranks = across_ranks.ranks(analyses, summaries, of_ranks)
    if tables is not None and folders is not None:
        for k, analysis in enumerate(analyses):
            folders[analysis.path].rename(tables / f"trace{k}")
        if of_ranks is not None:
            write_all(of_ranks, tables / "ranks")
    return Summary(warnings=(repeated,) if repeated else (), traces=summaries, ranks=ranks), analyses


def _analyze_and_summarize(path: Path, folders: dict[Path, Path] | None) -> tuple[Analysis, TraceSummary]:
    """One trace's analysis and summary; the analysis is cut down if its tables go to a folder."""
    if folders is not None:
        return _analyze_into(path, folders[path])
    analysis = analyze(path)
    return analysis, summarize_trace(analysis)


def _analyze_into(path: Path, folder: Path) -> tuple[Analysis, TraceSummary]:
    """Write a trace's tables to a folder; return its summary, and its analysis with the tables ranks compare."""
    analysis = analyze_trace(path, read_trace(path), load_source_lines(path), folder=folder)
    summary = summarize_trace(analysis)
    trace = replace(analysis.trace, **{name: getattr(analysis.trace, name).iloc[:0].copy() for name in _NOT_COMPARED})
    tables = {name: analysis.tables[name] for name in _FOR_COUNTERS if name in analysis.tables}
    return Analysis(path, trace, analysis.device, tables), summary


def _repeated_ranks(analyses: list[Analysis]) -> str | None:
    """Why these traces cannot be the ranks of one job; None if they can."""
    counts = Counter(a.trace.rank for a in analyses if a.trace.rank is not None)
    often = [f"{count} traces are of rank {rank}" for rank, count in sorted(counts.items()) if count > 1]
    if not often:
        return None
    return f"these traces are not the ranks of one job, so ranks are not compared: {', '.join(often)}"


def summarize_trace(analysis: Analysis) -> TraceSummary:
    """One entry of `traces` in summary.json."""
    trace, device, of = analysis.trace, analysis.device, analysis.tables
    capture = capture_of(analysis.path)
    plain: dict[str, Any] = step_figures(trace, device) | {
        one.name: analysis.rows(one.name, one.kind) for one in subjects_of(TraceSummary) if one.name in OF_SUBJECTS
    }
    return TraceSummary(
        **plain,
        path=path_text(analysis.path),
        sha256=_sha256(analysis.path),
        rank=trace.rank,
        world_size=trace.meta.world_size,
        device=device,
        device_name=trace.meta.device_name(device),
        compute_major=trace.meta.compute_major(device),
        window_ns=trace.window[1] - trace.window[0],
        unprofiled_step_ns=capture.unprofiled.median_ns if capture and capture.unprofiled else None,
        quality=quality(analysis),
        gpu=gpu_time(trace, device),
        devices=device_times(trace),
        temporal=analysis.rows("temporal", TemporalRow),
        steps=analysis.rows("step_times", StepTime),
        sections=analysis.rows("sections", Section),
        idle=idle(analysis),
        host_gaps=None if device is None else host_gaps(trace, device, of["idle_gaps"]),
        input=input_wait(trace, device, of["input_waits"]),
        kernels=analysis.rows("kernel_names", KernelName),
        kernel_types=analysis.rows("kernel_types", KernelType),
        syncs=syncs(analysis),
        step_parts=step_parts(trace, device),
        launches=launches(analysis),
        collectives=collectives(analysis),
        all_reduce=all_reduce(trace, device),
        all_reduce_passes=reduce_passes(trace, device),
        series=series(analysis),
        memory=memory(analysis),
        annotations=analysis.rows("annotation_times", Label, MOST_LABELS),
        optimizer=analysis.rows("optimizer_calls", OptimizerCall) or None,
        critical_path=critical_path(of, gpu=device is not None),
        program=program(analysis),
        sequences=most_frequent(of["sequences"]),
        overview=overview.overview(trace, device, analysis.rows("top_operators", TopOperator, MOST_OPERATORS)),
        placement=placement(trace),
        precision=None if device is None else precision_of(of["kernel_formats"]),
        timeline=shown_timeline(trace, of),
        findings=(),
        training=is_training(trace),
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
