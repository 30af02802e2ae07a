"""Builds the content of summary.json: an entry for each trace, and one for all ranks together."""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from steptrace.analysis.common.gpu_time import gpu_time, step_times
from steptrace.analysis.common.labels import label_times
from steptrace.analysis.common.launches import launches
from steptrace.analysis.common.steps import is_training
from steptrace.analysis.communication import ranks as across_ranks
from steptrace.analysis.communication.all_reduce import all_reduce
from steptrace.analysis.communication.collectives import collectives
from steptrace.analysis.critical_path.measure import critical_path
from steptrace.analysis.idle import host_gaps, idle
from steptrace.analysis.input import input_wait
from steptrace.analysis.kernels.formats import kernel_formats, precision_of
from steptrace.analysis.kernels.measure import kernel_sequences, kernel_types, most_frequent, recorded_kernels
from steptrace.analysis.memory.record import memory
from steptrace.analysis.overview import overview, step_figures
from steptrace.analysis.program import program
from steptrace.analysis.quality import quality
from steptrace.analysis.step_kinds import mean_ns, step_kinds
from steptrace.analysis.syncs import syncs
from steptrace.analysis.tables import OF_SUBJECTS, write_all, write_tables
from steptrace.analysis.timeline import shown_timeline
from steptrace.documents.base import subjects_of
from steptrace.documents.kernels import KernelName, KernelType
from steptrace.documents.labels import Label
from steptrace.documents.run import capture_of
from steptrace.documents.steps import StepTime
from steptrace.documents.summary import Summary, TraceSummary
from steptrace.documents.table import rows
from steptrace.trace.decode import path_text
from steptrace.trace.files import find_traces
from steptrace.trace.link import read_trace
from steptrace.trace.model import Trace
from steptrace.trace.read import read_each
from steptrace.trace.source import with_records

#: Tables that neither `write_counters` nor the comparison of ranks reads.
_NOT_COMPARED = ("ops", "frames", "memory", "syncs")

#: How many labels summary.json lists; the table `label_times` has all.
MOST_LABELS = 100


def load_trace(path: Path) -> Trace:
    """A trace with what a run recorded beside it.

    Raises:
        TraceError: the trace, or a file recorded beside it, cannot be read.
    """
    return with_records(read_trace(path))


def summarize(paths: Iterable[str | Path], *, tables: Path | None = None) -> tuple[Summary, list[Trace]]:
    """The summary of all traces behind `paths` (files or folders), by rank, and the traces.

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
    done = read_each(partial(_summarize, folders=folders), files)
    done.sort(key=lambda pair: (pair[0].rank is None, pair[0].rank or 0, str(pair[0].path)))
    traces = [trace for trace, _ in done]
    repeated = _repeated_ranks(traces)
    summaries, ranks = tuple(summary for _, summary in done), None
    of_ranks = across_ranks.tables(traces) if len(traces) > 1 and not repeated else None
    if of_ranks is not None:
        ranks = across_ranks.ranks(summaries, traces[0].path.parent, of_ranks)
    if tables is not None and folders is not None:
        for k, trace in enumerate(traces):
            folders[trace.path].rename(tables / f"trace{k}")
        if of_ranks is not None:
            write_all(of_ranks, tables / "ranks")
    return Summary(warnings=(repeated,) if repeated else (), traces=summaries, ranks=ranks), traces


def _summarize(path: Path, folders: dict[Path, Path] | None) -> tuple[Trace, TraceSummary]:
    """One trace and its summary; the trace is cut down to what ranks compare if its tables go to a folder."""
    trace = load_trace(path)
    if folders is None:
        return trace, summarize_trace(trace)
    write_tables(trace, folders[path])
    summary = summarize_trace(trace)
    light = replace(trace, **{name: getattr(trace, name).iloc[:0].copy() for name in _NOT_COMPARED})
    return light, summary


def _repeated_ranks(traces: list[Trace]) -> str | None:
    """Why these traces cannot be the ranks of one job; None if they can."""
    counts = Counter(trace.rank for trace in traces if trace.rank is not None)
    often = [f"{count} traces are of rank {rank}" for rank, count in sorted(counts.items()) if count > 1]
    if not often:
        return None
    return f"these traces are not the ranks of one job, so ranks are not compared: {', '.join(often)}"


def summarize_trace(trace: Trace) -> TraceSummary:
    """One entry of `traces` in summary.json."""
    device, capture = trace.device, capture_of(trace.path)
    unprofiled = capture.unprofiled if capture else None
    steps, syncs_of_steps = rows(step_times(trace), StepTime), syncs(trace)
    plain: dict[str, Any] = step_figures(trace) | {
        one.name: rows(OF_SUBJECTS[one.name](trace), one.kind)
        for one in subjects_of(TraceSummary)
        if one.name in OF_SUBJECTS
    }
    return TraceSummary(
        **plain,
        path=path_text(trace.path),
        sha256=_sha256(trace.path),
        rank=trace.rank,
        world_size=trace.meta.world_size,
        device=device,
        device_name=trace.meta.device_name(device),
        compute_major=trace.meta.compute_major(device),
        window_ns=trace.window[1] - trace.window[0],
        unprofiled_step_ns=unprofiled.median_ns if unprofiled else None,
        unprofiled_mean_ns=mean_ns(unprofiled),
        step_kinds=step_kinds(
            unprofiled, [step.dur_ns for step in steps], None if device is None else syncs_of_steps.by_step
        ),
        quality=quality(trace),
        gpu=gpu_time(trace),
        steps=steps,
        idle=idle(trace),
        host_gaps=None if device is None else host_gaps(trace),
        input=input_wait(trace),
        kernels=rows(recorded_kernels(trace), KernelName),
        kernel_types=rows(kernel_types(trace), KernelType),
        syncs=syncs_of_steps,
        launches=launches(trace),
        collectives=collectives(trace),
        all_reduce=all_reduce(trace),
        memory=memory(trace),
        labels=rows(label_times(trace).head(MOST_LABELS), Label),
        critical_path=critical_path(trace),
        program=program(trace),
        sequences=most_frequent(kernel_sequences(trace)),
        overview=overview(trace),
        precision=None if device is None else precision_of(kernel_formats(trace)),
        timeline=shown_timeline(trace),
        findings=(),
        training=is_training(trace),
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
