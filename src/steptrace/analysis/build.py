"""Every table of a trace, and the content of summary.json: an entry for each trace, and one for all ranks together."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pandas as pd

from steptrace.analysis import ranks as across_ranks
from steptrace.analysis.common.call_tree import call_tree, kernel_origins
from steptrace.analysis.common.labels import is_training, label_times
from steptrace.analysis.communication import all_reduce, collective_times, collectives, host_compute
from steptrace.analysis.copies import copies, copy_rates
from steptrace.analysis.critical_path import critical_path, critical_paths
from steptrace.analysis.idle import host_gaps, idle, idle_by_stream, idle_gaps
from steptrace.analysis.input import input_wait, input_waits
from steptrace.analysis.kernels import kernel_sequences, kernel_table, kernel_types, most_frequent, recorded_kernels
from steptrace.analysis.launches import launch_times, launches
from steptrace.analysis.memory import memory, memory_blocks
from steptrace.analysis.overview import overview, step_figures, top_operators
from steptrace.analysis.precision import kernel_formats, precision_of
from steptrace.analysis.program import function_times, program
from steptrace.analysis.quality import quality, quality_checks
from steptrace.analysis.rank_waits import with_waiting
from steptrace.analysis.roofline import roofline
from steptrace.analysis.steps import alike, gpu_time, lengths_ns, mean_ns, step_kinds, step_times
from steptrace.analysis.streams import queue_lengths, queues, streams, streams_at_once
from steptrace.analysis.syncs import sync_costs, sync_sites, syncs
from steptrace.analysis.timeline import shown_timeline
from steptrace.documents.base import subjects_of
from steptrace.documents.kernels import KernelName, KernelType
from steptrace.documents.labels import Label
from steptrace.documents.run import capture_of
from steptrace.documents.steps import StepTime
from steptrace.documents.summary import Summary, TraceSummary
from steptrace.documents.table import rows, write_table
from steptrace.machine import return_freed_arrays
from steptrace.trace.decode import path_text
from steptrace.trace.files import find_traces
from steptrace.trace.link import read_trace
from steptrace.trace.model import Trace, carry, forget
from steptrace.trace.read import read_each
from steptrace.trace.rows import TABLES
from steptrace.trace.source import with_records

#: Tables that are a subject of `TraceSummary`, by its name.
OF_SUBJECTS: Final[Mapping[str, Callable[[Trace], pd.DataFrame]]] = {
    "queues": queues,
    "streams_at_once": streams_at_once,
    "streams": streams,
    "copies": copies,
    "roofline": roofline,
}
#: Tables made of the call tree, which is the largest of all.
OF_CALL_TREE: Final[Mapping[str, Callable[[Trace], pd.DataFrame]]] = {
    "call_tree": call_tree,
    "function_times": function_times,
    "sequences": kernel_sequences,
    "kernel_origins": kernel_origins,
    "top_operators": top_operators,
}
#: Every table by name, but the trace's own and the allocators' memory. A trace remembers what it has computed, so they
#: may be asked for in any order. Without GPU work those of the GPU have no rows.
OF_TRACE: Final[Mapping[str, Callable[[Trace], pd.DataFrame]]] = {
    **OF_CALL_TREE,
    "critical_path": critical_paths,
    "quality_checks": quality_checks,
    "idle_by_stream": idle_by_stream,
    "idle_gaps": idle_gaps,
    "queue_lengths": queue_lengths,
    "copy_rates": copy_rates,
    "collective_times": collective_times,
    "sync_costs": sync_costs,
    "sync_sites": sync_sites,
    "step_times": step_times,
    "input_waits": input_waits,
    "label_times": label_times,
    "kernel_names": kernel_table,
    "kernel_types": kernel_types,
    "kernel_formats": kernel_formats,
    "launch_times": launch_times,
    **OF_SUBJECTS,
}


def write_tables(trace: Trace, folder: Path) -> None:
    """Write every table to `folder/<name>.parquet`."""
    if len(trace.memory):
        write_all({"memory_blocks": memory_blocks(trace)}, folder)
    write_all({name: getattr(trace, name) for name in TABLES}, folder)
    for name, table in OF_TRACE.items():
        if name not in OF_CALL_TREE:
            forget(trace, call_tree)  # what is left needs its memory
        write_all({name: table(trace)}, folder)


def write_all(tables: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Write tables to `folder/<name>.parquet`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        write_table(table, folder / f"{name}.parquet")


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


def summarize(
    paths: Iterable[str | Path],
    *,
    tables: Path | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,  # noqa: ARG005 - their names are its meaning
) -> tuple[Summary, list[Trace]]:
    """The summary of all traces behind `paths` (files or folders), by rank, and the traces.

    Args:
        paths: files, or folders of them.
        tables: a folder that every table is written to, as `trace<k>/<name>.parquet`, k counting as in the summary,
            and the tables across ranks as `ranks/<name>.parquet`. The process that reads a trace writes its tables,
            and keeps little more than the figures compared across ranks, so memory does not grow with the number of
            traces.
        progress: called after each trace, with the number of those read and of all.

    Raises:
        TraceError: a path is missing, or a trace cannot be read.
        OSError: a table cannot be written.
    """
    files = find_traces(paths)
    folders = None if tables is None else {path: tables / f".{place}" for place, path in enumerate(files)}
    done = read_each(partial(_summarize, folders=folders), files, progress=progress)
    done.sort(key=lambda pair: (pair[0].rank is None, pair[0].rank or 0, str(pair[0].path)))
    traces = [trace for trace, _ in done]
    repeated = _repeated_ranks(traces)
    summaries, ranks = tuple(summary for _, summary in done), None
    of_ranks = across_ranks.tables(traces) if len(traces) > 1 and not repeated else None
    if of_ranks is not None:
        by_rank, matched = across_ranks.by_rank(traces), of_ranks["matched_collectives"]
        summaries = with_waiting(summaries, by_rank, matched)
        ranks = across_ranks.ranks(summaries, traces[0].path.parent, of_ranks)
    if tables is not None and folders is not None:
        for k, trace in enumerate(traces):
            folders[trace.path].rename(tables / f"trace{k}")
        if of_ranks is not None:
            write_all(of_ranks, tables / "ranks")
    return Summary(warnings=(repeated,) if repeated else (), traces=summaries, ranks=ranks), traces


def _summarize(path: Path, folders: dict[Path, Path] | None) -> tuple[Trace, TraceSummary]:
    """One trace and its summary; the trace is cut down to what ranks compare if its tables go to a folder."""
    return_freed_arrays()
    trace = load_trace(path)
    if folders is None:
        return trace, summarize_trace(trace)
    write_tables(trace, folders[path])
    summary = summarize_trace(trace)
    light = replace(trace, **{name: getattr(trace, name).iloc[:0].copy() for name in _NOT_COMPARED})
    if trace.device is None:  # what hides a host's collectives are its operators
        host_compute(trace)
        light = carry(trace, light, collective_times, host_compute)
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
    first_ns = int(trace.steps["ts"].iloc[0]) if steps else 0
    left_out = sum(one.start_ns < first_ns for one in trace.meta.records.left_out)
    kinds = alike(unprofiled, lengths_ns(trace), left_out=left_out)
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
        unprofiled_alike_ns=kinds.unprofiled_ns,
        profiled_over_unprofiled=kinds.ratio,
        step_kinds=step_kinds(kinds, None if device is None else syncs_of_steps.by_step),
        quality=quality(trace),
        gpu=gpu_time(trace),
        steps=steps,
        idle=idle(trace),
        host_gaps=None if device is None else host_gaps(trace),
        input=input_wait(trace, unprofiled, kinds),
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
