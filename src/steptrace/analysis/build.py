"""Every table of a trace, and the content of summary.json: an entry for each trace, and one for all ranks together."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from steptrace.analysis import ranks as across_ranks
from steptrace.analysis.common import registry
from steptrace.analysis.common.call_tree import call_tree, kernel_nodes
from steptrace.analysis.common.division import gpu_division, host_division
from steptrace.analysis.common.labels import is_training
from steptrace.analysis.communication import collective_times, host_compute
from steptrace.analysis.memory import memory_blocks
from steptrace.analysis.modules import module_calls
from steptrace.analysis.overview import operator_times, step_figures
from steptrace.analysis.rank_timeline import rank_timeline
from steptrace.analysis.rank_waits import with_waiting
from steptrace.analysis.roofline import flop_rate
from steptrace.analysis.steps import mean_ns, spread, steps_alike, unprofiled_steps
from steptrace.documents.note import Note, note
from steptrace.documents.ranks import Ranks
from steptrace.documents.subject import modules_in
from steptrace.documents.summary import CUDA, Summary, TraceSummary
from steptrace.documents.table import write_table
from steptrace.errors import TraceError
from steptrace.files import naming, open_file
from steptrace.machine import return_freed_arrays
from steptrace.trace.decode import path_text
from steptrace.trace.files import find_traces
from steptrace.trace.link import read_trace
from steptrace.trace.model import Trace, carry, forget
from steptrace.trace.names import device_module
from steptrace.trace.read import read_undamaged, whole_and_damaged
from steptrace.trace.rows import TABLES
from steptrace.trace.source import with_records
from steptrace.trace.step_excerpt import step_excerpt
from steptrace.words.notes import note_texts

modules_in("steptrace.analysis")  # each module registers its computations


def write_tables(trace: Trace, folder: Path) -> None:
    """Write every table to `folder/<name>.parquet`. A large one is forgotten as soon as possible."""
    if len(trace.memory):
        write_all({"memory_blocks": memory_blocks(trace)}, folder)
    write_all({name: getattr(trace, name) for name in TABLES}, folder)
    for name, compute in registry.tables_of_call_tree().items():
        write_all({name: compute(trace)}, folder)
    kernel_nodes(trace)
    module_calls(trace)
    operator_times(trace)
    forget(trace, call_tree)  # the remaining tables need its memory
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
    limit: int | None = None,
    tables: Path | None = None,
    excerpt: Path | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,  # noqa: ARG005 - their names are its meaning
    bus_bytes_per_s: float | None = None,
) -> tuple[Summary, list[Trace]]:
    """The summary of all traces behind `paths` (files or folders), by rank, and the traces.

    Args:
        paths: files, or folders of them.
        limit: read only so many of the files, the first ones.
        tables: a folder that every table is written to, as `trace<k>/<name>.parquet`, k counting as in the summary,
            and the tables across ranks as `ranks/<name>.parquet`. The process that reads a trace writes its tables,
            and keeps little more than the figures compared across ranks, so memory does not grow with the number of
            traces.
        excerpt: a file that the median step of the trace is written to, if there is one trace and something ran in
            that step: a trace for Perfetto that is small enough for a page to carry.
        progress: called after each trace, with the number of those read and of all.
        bus_bytes_per_s: bus bandwidth of the link between the ranks, where it is known; see `AllReduce.expected_ns`.

    A folder's traces are read even if one of them is damaged; a note says which one, and why.

    Raises:
        TraceError: a path is missing, or a trace cannot be read that was named, or that is a folder's only one.
        OSError: a table cannot be written.
    """
    paths = list(paths)
    found = find_traces(paths)
    files = found[:limit]
    folders = None if tables is None else {path: tables / f".{place}" for place, path in enumerate(files)}
    excerpt = excerpt if len(files) == 1 else None
    summarized = partial(_summarize, folders=folders, excerpt=excerpt, bus_bytes_per_s=bus_bytes_per_s)
    done, damaged = whole_and_damaged(files, read_undamaged(summarized, files, named=paths, progress=progress))
    done.sort(key=lambda pair: (pair[0].rank is None, pair[0].rank or 0, str(pair[0].path)))
    traces = [trace for trace, _ in done]
    summaries, of_ranks = of_ranks_together(traces, tuple(summary for _, summary in done))
    notes = _notes(traces, summaries, damaged, left_out=len(found) - len(files))
    ranks = None if of_ranks is None else _ranks(traces, summaries, of_ranks)
    if tables is not None and folders is not None:
        for k, trace in enumerate(traces):
            folders[trace.path].rename(tables / f"trace{k}")
        if of_ranks is not None:
            write_all(of_ranks, tables / "ranks")
    return Summary(warnings=note_texts(notes), traces=summaries, ranks=ranks, notes=notes), traces


def _ranks(traces: Sequence[Trace], summaries: tuple[TraceSummary, ...], of_ranks: Mapping[str, pd.DataFrame]) -> Ranks:
    """What the ranks of one job say together, with a picture of one step of all of them."""
    not_read = across_ranks.ranks_not_read(traces)
    ranks = across_ranks.ranks(summaries, traces[0].path.parent, of_ranks, not_read=not_read)
    picture = rank_timeline(across_ranks.by_rank(traces), of_ranks, ranks.straggler)
    return msgspec.structs.replace(ranks, timeline=picture)


def of_ranks_together(
    traces: Sequence[Trace], summaries: tuple[TraceSummary, ...]
) -> tuple[tuple[TraceSummary, ...], dict[str, pd.DataFrame] | None]:
    """The summaries of some traces with what each rank waits for the others, and the tables across ranks.

    Args:
        traces: whole, or as `light` leaves them.
        summaries: one of each.

    Returns:
        The summaries as they are, and None, where the traces are not the ranks of one job.
    """
    if len(traces) < 2 or _repeated_ranks(traces):
        return summaries, None
    tables = across_ranks.tables(traces)
    return with_waiting(summaries, across_ranks.by_rank(traces), tables["matched_collectives"]), tables


def light(trace: Trace) -> Trace:
    """A trace without the tables that the comparison of ranks does not read."""
    copy = replace(trace, **{name: getattr(trace, name).iloc[:0].copy() for name in _NOT_COMPARED})
    if trace.device is not None:
        gpu_division(trace)  # for the picture of all ranks
        return carry(trace, copy, gpu_division)
    host_compute(trace)  # what hides a host's collectives are its operators
    host_division(trace)
    return carry(trace, copy, collective_times, host_compute, host_division)


def _summarize(
    path: Path, *, folders: dict[Path, Path] | None, excerpt: Path | None, bus_bytes_per_s: float | None
) -> tuple[Trace, TraceSummary]:
    """One trace and its summary; the trace is cut down to what ranks compare if its tables go to a folder."""
    return_freed_arrays()
    trace = replace(load_trace(path), bus_bytes_per_s=bus_bytes_per_s)
    if folders is None:
        return trace, summarize_trace(trace)
    write_tables(trace, folders[path])
    if excerpt is not None and (of_step := step_excerpt(trace)) is not None:
        with naming(excerpt), excerpt.open("wb") as file:  # the error of a full disk does not say which file
            file.write(of_step.data)
    summary = summarize_trace(trace)
    return light(trace), summary


def _notes(
    traces: Sequence[Trace], summaries: Sequence[TraceSummary], damaged: Mapping[Path, TraceError], *, left_out: int
) -> tuple[Note, ...]:
    """What to read with care in a set of traces.

    They name the traces that cannot be read and those that the limit left out. They name ranks with more than one
    trace, and ranks that communicate and were not read.
    """
    notes = [note("trace_not_read", file=path_text(path), reason=error.what) for path, error in damaged.items()]
    if left_out:
        notes.append(note("traces_left_out", left_out=left_out, found=len(traces) + len(damaged) + left_out))
    if repeated := _repeated_ranks(traces):
        notes.append(note("ranks_repeated", ranks=[{"rank": rank, "traces": count} for rank, count in repeated]))
    elif traces and (not_read := across_ranks.ranks_not_read(traces)) and any(map(_communicates, summaries)):
        notes.append(note("ranks_not_read", read=len(traces), world_size=len(traces) + not_read))
    return tuple(notes)


def _communicates(summary: TraceSummary) -> bool:
    return summary.collectives is not None and summary.collectives.count > 0


def _repeated_ranks(traces: Sequence[Trace]) -> list[tuple[int, int]]:
    """Each rank of more than one trace, with their number; such traces cannot be the ranks of one job."""
    counts = Counter(trace.rank for trace in traces if trace.rank is not None)
    return [(rank, count) for rank, count in sorted(counts.items()) if count > 1]


def summarize_trace(trace: Trace) -> TraceSummary:
    """One entry of `traces` in summary.json: facts about the trace, and everything that the registry computes."""
    device = trace.device
    unprofiled = unprofiled_steps(trace)
    kinds = steps_alike(trace)
    computed: dict[str, Any] = {**step_figures(trace), **flop_rate(trace)._asdict(), **registry.parts_of(trace)}
    return TraceSummary(
        **computed,
        path=path_text(trace.path),
        sha256=_sha256(trace.path),
        rank=trace.rank,
        world_size=trace.meta.world_size,
        device=device,
        device_name=trace.meta.device_name(device),
        device_module=device_module(trace.meta.runtimes) if trace.meta.runtimes else CUDA,
        compute_major=trace.meta.compute_major(device),
        window_ns=trace.window[1] - trace.window[0],
        unprofiled_step_ns=unprofiled.median_ns if unprofiled else None,
        unprofiled_mean_ns=mean_ns(unprofiled),
        unprofiled_iqr_over_median=spread(unprofiled),
        unprofiled_alike_ns=kinds.unprofiled_ns,
        profiled_over_unprofiled=kinds.ratio,
        findings=(),
        training=is_training(trace),
    )


def _sha256(path: Path) -> str:
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
