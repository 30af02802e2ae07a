"""Writes the files of a run from the records of its ranks. Imports no torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import asdict

from steptrace import run_folder
from steptrace.documents.base import columns_of
from steptrace.documents.note import Note, note
from steptrace.documents.probe import GpuInUse, HeldMemory, MeasuredStep, RankRecord, TraceEnd
from steptrace.documents.run import InputOfRun, RunMemory, RunRecord, SectionOfRun, StepOfRun
from steptrace.documents.table import names_of
from steptrace.errors import SteptraceError
from steptrace.machine import environment
from steptrace.words.notes import note_text

if TYPE_CHECKING:  # a prediction and a check of the answer need none
    import pandas as pd


def steps_table(ranks: Sequence[Sequence[MeasuredStep]]) -> "pd.DataFrame":
    """The table `StepOfRun` from all ranks' rows: for each step the longest time and wait, and the mean loss."""
    import pandas as pd

    rows = [
        {
            "phase": row.phase,
            "step": number,
            "step_ns": row.step_ns,
            "loader_wait_ns": row.wait_ns if row.batches else None,
            "loss": row.loss,
        }
        for rank in ranks
        for number, row in enumerate(rank)
    ]
    frame = pd.DataFrame(rows, columns=["phase", "step", "step_ns", "loader_wait_ns", "loss"])
    frame = frame.astype({"step_ns": "int64", "loader_wait_ns": "Int64", "loss": "float64"})
    steps = frame.groupby(["phase", "step"], sort=False, as_index=False)
    of_all = steps.size()["size"] == len(ranks)
    return steps.agg({"step_ns": "max", "loader_wait_ns": "max", "loss": "mean"})[of_all].reset_index(drop=True)


def trace_fault(trace: TraceEnd | None) -> Note | None:
    """The note on a trace that is missing or incomplete; None if it is complete, or if none was to be recorded."""
    if trace is None or trace.state == "recorded":
        return None
    return note("trace_fault", message=trace.message)


def _move_traces(ranks: Sequence[RankRecord], left: Path, run_dir: Path) -> tuple[str, ...]:
    """Move the traces into the run's folder, each with its record; return their names in the order of the ranks."""
    for name in _earlier_traces(run_dir):
        (run_dir / name).unlink(missing_ok=True)
        _beside(run_dir / name).unlink(missing_ok=True)
    names = []
    for rank in ranks:
        trace = left / ("trace.json.gz" if rank.trace is None else rank.trace.file)
        if not trace.exists():
            continue
        names.append(trace.name)
        # Otherwise the record of an earlier trace of this name would be taken for the record of the new one.
        _beside(run_dir / trace.name).unlink(missing_ok=True)
        for file in filter(Path.exists, (trace, _beside(trace))):  # a trace can lack its record: see Recording
            file.replace(run_dir / file.name)
    return tuple(names)


def _earlier_traces(run_dir: Path) -> tuple[str, ...]:
    """The names of the traces that an earlier run left in the folder, by that run's record."""
    try:
        return run_folder.read_run(run_dir).traces
    except SteptraceError:
        return ()


def _beside(trace: Path) -> Path:
    """The record that lies beside a trace."""
    return trace.with_name(trace.name.replace("trace", "capture").removesuffix(".gz"))


def _write_lines(first: RankRecord, run_dir: Path) -> None:
    """Write the lines of operators and syncs, and the text of the files that they name."""
    if first.warned_syncs is not None:
        run_folder.write_document(run_dir, first.warned_syncs)
    if first.sources is not None:
        run_folder.write_sources(run_dir, first.sources)
        run_folder.write_op_lines(run_dir, msgspec.to_builtins(first.op_lines))


def _write_passes(first: RankRecord, run_dir: Path) -> None:
    """Write the results of the program's own passes: sections, loading, and the bandwidth between the ranks."""
    import pandas as pd

    if first.sections:
        sections = pd.DataFrame(msgspec.to_builtins(first.sections), columns=names_of(SectionOfRun))
        run_folder.write_rows(run_dir, SectionOfRun, sections)
    if first.input_batches:
        rows = [{"batch": number, **asdict(batch)} for number, batch in enumerate(first.input_batches)]
        nullable = [column.name for column in columns_of(InputOfRun) if column.nullable]
        batches = pd.DataFrame(rows, columns=names_of(InputOfRun)).astype(dict.fromkeys(nullable, "Int64"))
        run_folder.write_rows(run_dir, InputOfRun, batches)
    if first.communication is not None:
        run_folder.write_document(run_dir, first.communication)


def memory_of(gpu: GpuInUse | None, batch_size: int, counted: HeldMemory, limit_bytes: int | None = None) -> RunMemory:
    """The record of the memory that a training holds; the capacity is the device's, or the limit if that is less."""
    import psutil

    capacity, source = (gpu.memory_bytes, "device") if gpu else (psutil.virtual_memory().total, "machine")
    if limit_bytes is not None and limit_bytes < capacity:
        capacity = limit_bytes
        source = "limit"
    return RunMemory(
        device="cuda" if gpu else "cpu",
        batch_size=batch_size,
        capacity_bytes=capacity,
        capacity_source=source,
        held=counted.held,
        gradient_bytes=counted.gradient_bytes,
        free_bytes=counted.free_bytes,
        largest_free_bytes=counted.largest_free_bytes,
    )


def write_files(
    ranks: Sequence[RankRecord],
    left: Path,
    run_dir: Path,
    labels: Mapping[str, Any],
    *,
    batch_size: int | None,
    limit_bytes: int | None = None,
) -> RunRecord:
    """Write run.json, steps.parquet, traces, memory.json and the other results into `run_dir`; return the run's record.

    Args:
        ranks: the ranks' records.
        left: the folder with the files that the ranks have written.
        run_dir: the run's folder, which is made if it is missing.
        labels: the fields of its record that are not measured; `notes` are added to those of the first rank.
        batch_size: samples in a batch; None if they vary, and then there is no memory.json.
        limit_bytes: the memory that peaks are compared with, if it is less than the device has.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    first = ranks[0]
    gpu = first.gpu
    memory = first.memory
    cwd = None if first.cwd is None else Path(first.cwd)
    run_folder.write_rows(run_dir, StepOfRun, steps_table([rank.rows for rank in ranks]))
    traces = _move_traces(ranks, left, run_dir)
    _write_lines(first, run_dir)
    _write_passes(first, run_dir)
    if batch_size is not None and memory is not None:
        run_folder.write_document(run_dir, memory_of(gpu, batch_size, memory, limit_bytes))
    is_gone = first.trace is not None and not traces
    fault = trace_fault(first.trace) or (note("trace_fault", message=None) if is_gone else None)
    notes = (*first.notes, *([fault] if fault else ()), *labels.get("notes", ()))
    measured = {
        "world_size": max(rank.world_size for rank in ranks),
        "device": "cuda" if gpu else "cpu",
        "environment": environment(first, cwd if cwd is not None and cwd.is_dir() else None),
        "traces": traces,
        "notes": notes,
        "warnings": tuple(map(note_text, notes)),
        "clock": first.clock,
        "peak_allocated_bytes": first.peak_allocated_bytes,
        "peak_reserved_bytes": first.peak_reserved_bytes,
        "nvml": first.nvml,
        "batch_bytes": first.batch_bytes,
        "compiled": first.compiled,
    }
    run = RunRecord(**{**labels, **measured})
    run_folder.write_document(run_dir, run)  # last: a folder with run.json is complete
    return run
