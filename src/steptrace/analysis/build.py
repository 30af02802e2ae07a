"""Traces to the content of summary.json: every section in turn, over each trace and over all ranks."""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from steptrace.analysis.common.analysis import Analysis, RankSection, Section
from steptrace.analysis.communication import record as collectives
from steptrace.analysis.communication import record_ranks as ranks
from steptrace.analysis.critical_path import record as critical_path
from steptrace.analysis.idle import record as idle
from steptrace.analysis.idle import record_gaps as host_gaps
from steptrace.analysis.input import record as input
from steptrace.analysis.kernels import record as kernels
from steptrace.analysis.launches import record as launches
from steptrace.analysis.launches import record_queues as queues
from steptrace.analysis.memory import record as memory
from steptrace.analysis.optimizer import record as optimizer
from steptrace.analysis.overview import record as overview
from steptrace.analysis.overview import record_gpu as gpu_time
from steptrace.analysis.overview import record_steps as steps
from steptrace.analysis.program import record as program
from steptrace.analysis.program import record_labels as annotations
from steptrace.analysis.quality import record as quality
from steptrace.analysis.syncs import record as syncs
from steptrace.analysis.syncs import record_prices as prices
from steptrace.analysis.timeline import record as timeline
from steptrace.documents.base import convert
from steptrace.documents.summary import Ranks, Summary, TraceSummary
from steptrace.trace.bounds import path_text
from steptrace.trace.find import find_traces
from steptrace.trace.link import read_trace
from steptrace.trace.model import TABLES, Trace
from steptrace.trace.parallel import read_each
from steptrace.trace.source import SourceLines, load_source_lines

SCHEMA_VERSION = 1

#: What the summary of one trace holds, in this order. A section may use the tables of those before it.
SECTIONS: tuple[Section, ...] = (
    quality,
    gpu_time,
    steps,
    idle,
    host_gaps,
    input,
    kernels,
    syncs,
    prices,
    launches,
    collectives,
    queues,
    memory,
    annotations,
    optimizer,
    critical_path,
    program,
    overview,
    timeline,
)

#: What is said of several ranks together.
RANK_SECTIONS: tuple[RankSection, ...] = (ranks,)


#: Tables that nothing here asks for again: they are written at once, where they are written, and let go.
_ONLY_WRITTEN = ("call_tree", "critical_path", "memory_blocks")

#: What `write_counters` asks for.
_FOR_COUNTERS = ("queue_lengths", "copy_rates")

#: What neither that nor the comparison of ranks asks a trace for.
_NOT_COMPARED = ("ops", "launches", "frames", "memory", "syncs")


def analyze(path: Path, sources: tuple[Path, ...] = ()) -> Analysis:
    """Read one trace and compute every table.

    Args:
        path: the trace file.
        sources: folders that source lines may be read from, besides what was recorded with the trace.

    Raises:
        TraceError: the trace, or a file recorded beside it, cannot be read.
    """
    return analyze_trace(path, read_trace(path), load_source_lines(path, sources))


def analyze_trace(
    path: Path, trace: Trace, lines: SourceLines | None = None, *, folder: Path | None = None
) -> Analysis:
    """Compute every table of a trace that has been read.

    With `folder` all of them are written there, and those that only outsiders read are not kept.
    """
    device = trace.devices[0] if trace.devices else None
    analysis = Analysis(path, trace, device, lines or SourceLines())
    for section in SECTIONS:
        analysis.tables.update(section.tables(analysis))
        if folder is not None:
            early = analysis.tables.keys() & set(_ONLY_WRITTEN)
            _write_all({name: analysis.tables.pop(name) for name in early}, folder)
    for across in RANK_SECTIONS:
        analysis.carried.update(across.carried(analysis))
    if folder is not None:
        _write_all({**{name: getattr(trace, name) for name in TABLES}, **analysis.tables}, folder)
    return analysis


def summarize(
    paths: Iterable[str | Path], sources: tuple[Path, ...] = (), *, tables: Path | None = None
) -> tuple[Summary, list[Analysis]]:
    """The summary of all traces behind `paths` (files or folders), by rank, and the analyses behind it.

    Args:
        paths: files, or folders of them.
        sources: folders that source lines may be read from.
        tables: a folder that every table is written to, as `write_tables` does. Each trace's are written as it is
            read, by the process that reads it, and the analyses then hold little more than what is compared across
            ranks: so memory does not depend on how many traces there are.

    Raises:
        TraceError: a path is missing, or a trace cannot be read.
        OSError: a table cannot be written.
    """
    found = find_traces(paths)
    folders = None if tables is None else {path: tables / f".{place}" for place, path in enumerate(found)}
    done = read_each(partial(_analyze_and_summarize, sources=sources, folders=folders), found)
    done.sort(key=lambda pair: (pair[0].trace.rank is None, pair[0].trace.rank or 0, str(pair[0].path)))
    analyses = [analysis for analysis, _ in done]
    repeated = _repeated_ranks(analyses)
    if tables is not None and folders is not None:
        for k, analysis in enumerate(analyses):
            folders[analysis.path].rename(tables / f"trace{k}")
        _write_ranks(analyses, tables)
    return Summary(
        schema_version=SCHEMA_VERSION,
        warnings=(repeated,) if repeated else (),
        traces=tuple(summary for _, summary in done),
        ranks=None if repeated else _compare_ranks(analyses),
    ), analyses


def _analyze_and_summarize(
    path: Path, sources: tuple[Path, ...], folders: dict[Path, Path] | None
) -> tuple[Analysis, TraceSummary]:
    """One trace's analysis and summary; with its tables written to its folder the analysis is cut down."""
    folder = None if folders is None else folders[path]
    analysis = analyze_trace(path, read_trace(path), load_source_lines(path, sources), folder=folder)
    summary = summarize_trace(analysis)
    if folder is None:
        return analysis, summary
    trace = replace(analysis.trace, **{name: getattr(analysis.trace, name).iloc[:0].copy() for name in _NOT_COMPARED})
    tables = {name: analysis.tables[name] for name in _FOR_COUNTERS if name in analysis.tables}
    return Analysis(path, trace, analysis.device, tables=tables, carried=analysis.carried), summary


def _repeated_ranks(analyses: list[Analysis]) -> str | None:
    """Why these traces are not the ranks of one job; None if nothing speaks against it."""
    said = Counter(a.trace.rank for a in analyses if a.trace.rank is not None)
    often = [f"{count} traces say that they are rank {rank}" for rank, count in sorted(said.items()) if count > 1]
    if not often:
        return None
    return f"these traces are not the ranks of one job, and are not compared as such: {', '.join(often)}"


def summarize_trace(analysis: Analysis) -> TraceSummary:
    """One entry of `traces` in summary.json."""
    trace, device = analysis.trace, analysis.device
    entry: dict[str, Any] = {
        "path": path_text(analysis.path),
        "sha256": _sha256(analysis.path),
        "rank": trace.rank,
        "world_size": trace.meta.world_size,
        "device": device,
        "device_name": trace.meta.device_name(device),
        "compute_major": trace.meta.compute_major(device),
        "window_ns": trace.window[1] - trace.window[0],
    }
    for section in SECTIONS:
        entry.update(section.record(analysis))
    return convert(entry, TraceSummary)


def _compare_ranks(analyses: list[Analysis]) -> Ranks | None:
    """What the rank sections say; None for a single trace."""
    if len(analyses) < 2:
        return None
    found: dict[str, Any] = {}
    for section in RANK_SECTIONS:
        found.update(section.record(analyses, section.tables(analyses)))
    return convert(found, Ranks)


def write_tables(analyses: list[Analysis], out: Path) -> None:
    """Write every table of every trace to `out/trace<k>/<name>.parquet`, k counting as in summary.json.

    What compares ranks goes to `out/ranks/<name>.parquet`.
    """
    for k, analysis in enumerate(analyses):
        tables = {**{name: getattr(analysis.trace, name) for name in TABLES}, **analysis.tables}
        _write_all(tables, out / f"trace{k}")
    _write_ranks(analyses, out)


def _write_ranks(analyses: list[Analysis], out: Path) -> None:
    if len(analyses) > 1 and not _repeated_ranks(analyses):
        for section in RANK_SECTIONS:
            _write_all(section.tables(analyses), out / "ranks")


def _write_all(tables: dict[str, pd.DataFrame], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        _write(table, folder / f"{name}.parquet")


def _write(table: pd.DataFrame, path: Path) -> None:
    """Write a table; only what repeats, its texts, through a dictionary: for times it costs as much as all the rest."""
    texts = [str(name) for name, dtype in table.dtypes.items() if dtype.kind not in "iufb"]
    table.to_parquet(path, index=False, use_dictionary=texts)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
