"""Converts the records of a measured process to the files of a run. Imports no torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steptrace import record
from steptrace.files import read_json, write_versioned

if TYPE_CHECKING:  # a prediction and a check of the answer need none
    import pandas as pd


def steps_table(ranks: Sequence[Sequence[Mapping[str, Any]]]) -> "pd.DataFrame":
    """The table `STEPS_OF_RUN` from all ranks' rows: for each step the longest time and wait, and the mean loss."""
    import pandas as pd

    rows = [
        {
            "phase": row["phase"],
            "step": number,
            "step_ns": row["step_ns"],
            "loader_wait_ns": row["wait_ns"] if row["batches"] else None,
            "loss": row["loss"],
        }
        for rank in ranks
        for number, row in enumerate(rank)
    ]
    frame = pd.DataFrame(rows, columns=["phase", "step", "step_ns", "loader_wait_ns", "loss"])
    frame = frame.astype({"step_ns": "int64", "loader_wait_ns": "Int64", "loss": "float64"})
    steps = frame.groupby(["phase", "step"], sort=False, as_index=False)
    of_all = steps.size()["size"] == len(ranks)
    return steps.agg({"step_ns": "max", "loader_wait_ns": "max", "loss": "mean"})[of_all].reset_index(drop=True)


def trace_name(rank: int) -> str:
    """File name of a rank's trace: `trace.json.gz` for rank 0, `trace.rank1.json.gz` for rank 1, and so on."""
    return f"trace{f'.rank{rank}' if rank else ''}.json.gz"


def move_trace(left: Path, run_dir: Path, rank: int) -> str | None:
    """Move a rank's trace and its record into the run's folder; returns its name there, None without a trace."""
    if not left.exists():
        return None
    name = trace_name(rank)
    left.replace(run_dir / name)
    beside = left.with_name(left.name.replace("trace.json.gz", "capture.json"))
    if beside.exists():  # a trace can lack its record: see Recording
        beside.replace(run_dir / name.replace("trace", "capture").removesuffix(".gz"))
    return name


def write_lines(left: Path, run_dir: Path) -> None:
    """The lines of operators and syncs, with the text of the files that they name, from a measurement's folder."""
    if (left / record.WARNED_SYNCS_FILE).exists():
        write_versioned(run_dir / record.WARNED_SYNCS_FILE, read_json(left / record.WARNED_SYNCS_FILE))
    if (left / record.SOURCES_FILE).exists():
        record.write_sources(run_dir, read_json(left / record.SOURCES_FILE))
    if (left / "op_lines.json").exists():
        record.write_op_lines(run_dir, read_json(left / "op_lines.json"))
