"""Converts the records of a measured process to the files of a run. Imports no torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steptrace import record
from steptrace.documents.note import Note, note
from steptrace.documents.probe import GpuInUse, HeldMemory, MeasuredStep, RankRecord, TraceEnd
from steptrace.documents.run import RunMemory, RunRecord, StepOfRun
from steptrace.errors import SteptraceError
from steptrace.files import read_json, write_versioned
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
    """Why a rank has no complete trace, by its record's `trace`; None if it has one, or none was to be recorded."""
    if trace is None or trace.state == "recorded":
        return None
    return note("trace_fault", message=trace.message)


def _move_traces(ranks: Sequence[RankRecord], left: Path, run_dir: Path) -> tuple[str, ...]:
    """Move the traces into the run's folder, each with its record; returns their names in the order of the ranks."""
    for name in _earlier_traces(run_dir):
        (run_dir / name).unlink(missing_ok=True)
        _beside(run_dir / name).unlink(missing_ok=True)
    names = []
    for rank in ranks:
        trace = left / ("trace.json.gz" if rank.trace is None else rank.trace.file)
        if not trace.exists():
            continue
        names.append(trace.name)
        # The record of an earlier trace of this name would be taken for the new one's.
        _beside(run_dir / trace.name).unlink(missing_ok=True)
        for file in filter(Path.exists, (trace, _beside(trace))):  # a trace can lack its record: see Recording
            file.replace(run_dir / file.name)
    return tuple(names)


def _earlier_traces(run_dir: Path) -> tuple[str, ...]:
    """The traces that an earlier run left in its folder, by its own record; other files there are not touched."""
    try:
        return record.read_run(run_dir).traces
    except SteptraceError:
        return ()


def _beside(trace: Path) -> Path:
    """The record that lies beside a trace."""
    return trace.with_name(trace.name.replace("trace", "capture").removesuffix(".gz"))


def _write_lines(left: Path, run_dir: Path) -> None:
    """The lines of operators and syncs, with the text of the files that they name, from a measurement's folder."""
    if (left / record.WARNED_SYNCS_FILE).exists():
        write_versioned(run_dir / record.WARNED_SYNCS_FILE, read_json(left / record.WARNED_SYNCS_FILE))
    if (left / record.SOURCES_FILE).exists():
        record.write_sources(run_dir, read_json(left / record.SOURCES_FILE))
    if (left / "op_lines.json").exists():
        record.write_op_lines(run_dir, read_json(left / "op_lines.json"))


def memory_of(gpu: GpuInUse | None, batch_size: int, counted: HeldMemory, limit_bytes: int | None = None) -> RunMemory:
    """The record of what a training has `counted`; its capacity is the limit if that is less than there is."""
    import psutil

    capacity, source = (gpu.memory_bytes, "device") if gpu else (psutil.virtual_memory().total, "machine")
    if limit_bytes is not None and limit_bytes < capacity:
        capacity, source = limit_bytes, "limit"
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
    """Write run.json, steps.parquet, traces, memory.json and the operators' lines into `run_dir`, made if missing.

    Args:
        ranks: the ranks' records.
        left: folder of the first rank's files.
        run_dir: the run's folder.
        labels: the fields of its record that are not measured; `notes` are added to those of the first rank.
        batch_size: samples in a batch; None where they vary: then there is no memory.json.
        limit_bytes: what peaks are held against, if less than there is.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    first = ranks[0]
    gpu, memory, cwd = first.gpu, first.memory, Path(first.cwd)
    record.write_rows(run_dir, StepOfRun, steps_table([rank.rows for rank in ranks]))
    traces = _move_traces(ranks, left, run_dir)
    _write_lines(left, run_dir)
    if batch_size is not None and memory is not None:
        record.write_document(run_dir, memory_of(gpu, batch_size, memory, limit_bytes))
    is_gone = first.trace is not None and not traces
    fault = trace_fault(first.trace) or (note("trace_fault", message=None) if is_gone else None)
    notes = (*first.notes, *([fault] if fault else ()), *labels.get("notes", ()))
    measured = {
        "world_size": max(rank.world_size for rank in ranks),
        "device": "cuda" if gpu else "cpu",
        "environment": environment(first, cwd if cwd.is_dir() else None),
        "traces": traces,
        "notes": notes,
        "warnings": tuple(map(note_text, notes)),
        "clock": first.clock,
        "peak_allocated_bytes": first.peak_allocated_bytes,
        "peak_reserved_bytes": first.peak_reserved_bytes,
        "nvml": first.nvml,
    }
    run = RunRecord(**{**labels, **measured})
    record.write_document(run_dir, run)  # last: a folder with run.json is complete
    return run
