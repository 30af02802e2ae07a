"""Every table of a trace, and the content of summary.json: an entry for each trace, and one for all ranks together."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from steptrace.analysis import ranks as across_ranks
from steptrace.analysis.common import registry
from steptrace.analysis.common.call_tree import call_tree, kernel_nodes
from steptrace.analysis.common.labels import is_training
from steptrace.analysis.communication import collective_times, host_compute
from steptrace.analysis.memory import memory_blocks
from steptrace.analysis.overview import operator_times, step_figures
from steptrace.analysis.rank_waits import with_waiting
from steptrace.analysis.steps import mean_ns, steps_alike, unprofiled_steps
from steptrace.documents.subject import modules_in
from steptrace.documents.summary import Summary, TraceSummary
from steptrace.documents.table import write_table
from steptrace.machine import return_freed_arrays
from steptrace.trace.decode import path_text
from steptrace.trace.files import find_traces
from steptrace.trace.link import read_trace
from steptrace.trace.model import Trace, carry, forget
from steptrace.trace.read import read_each
from steptrace.trace.rows import TABLES
from steptrace.trace.source import with_records

modules_in("steptrace.analysis")  # each attaches what it computes to the registry


def write_tables(trace: Trace, folder: Path) -> None:
    """Write every table to `folder/<name>.parquet`; of a large one only what is read from it is then remembered."""
    if len(trace.memory):
        write_all({"memory_blocks": memory_blocks(trace)}, folder)
    write_all({name: getattr(trace, name) for name in TABLES}, folder)
    for name, compute in registry.tables_of_call_tree().items():
        write_all({name: compute(trace)}, folder)
    kernel_nodes(trace)
    operator_times(trace)
    forget(trace, call_tree)  # what is left needs its memory
    readers = registry.readers()
    for name, compute in registry.other_tables().items():
        write_all({name: compute(trace)}, folder)
        for read in readers.get(name, ()):
            read(trace)
        if name in readers:
            forget(trace, compute)


def write_all(tables: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Write tables to `folder/<name>.parquet`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        write_table(table, folder / f"{name}.parquet")


#: Tables that neither `write_counters` nor the comparison of ranks reads.
_NOT_COMPARED = ("ops", "frames", "memory", "syncs")


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
    """One entry of `traces` in summary.json: what the trace is of, and all that the registry computes of it."""
    device, unprofiled, kinds = trace.device, unprofiled_steps(trace), steps_alike(trace)
    computed: dict[str, Any] = {**step_figures(trace), **registry.parts_of(trace)}
    return TraceSummary(
        **computed,
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
        findings=(),
        training=is_training(trace),
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
