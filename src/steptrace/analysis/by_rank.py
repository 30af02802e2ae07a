"""Ranks analysed one by one, each in a process or on a machine of its own, and then merged.

`write_rank` leaves a folder with the tables of one trace and a file with its entry of summary.json; `summarize_ranks`
makes of such folders what `summarize` makes of the traces.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from steptrace.analysis.build import NOT_COMPARED, analyze_into, merge
from steptrace.analysis.common.analysis import Analysis
from steptrace.documents.base import File, read, write
from steptrace.documents.summary import Summary, TraceSummary
from steptrace.errors import RecordError
from steptrace.trace.model import read_tables

#: In the folder of a rank that has been analysed.
RANK_FILE: Final = "rank.json"


class _Rank(File, frozen=True, kw_only=True):
    """What is said of a rank besides its tables: where its time 0 is, and its entry of summary.json."""

    path: str
    base_ns: int | None
    summary: TraceSummary


def write_rank(path: Path, folder: Path) -> None:
    """Analyse one trace and write what `summarize_ranks` asks for.

    Raises:
        TraceError: the trace cannot be read.
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    analysis, summary = analyze_into(path, folder)
    write(folder / RANK_FILE, _Rank(path=os.fspath(path), base_ns=analysis.trace.meta.base_ns, summary=summary))


def summarize_ranks(folders: Sequence[Path], tables: Path) -> tuple[Summary, list[Analysis]]:
    """The summary of ranks that `write_rank` has analysed, their tables in `tables`, and the analyses behind it.

    Raises:
        RecordError: a folder does not hold what `write_rank` leaves.
        OSError: a table cannot be written.
    """
    done, places = [], {}
    for number, folder in enumerate(folders):
        analysis, summary = _read(folder)
        done.append((analysis, summary))
        places[analysis.path] = tables / f".{number}"
        places[analysis.path].mkdir(parents=True)
        for table in folder.glob("*.parquet"):
            _link(table, places[analysis.path] / table.name)
    return merge(done, tables, places)


def _read(folder: Path) -> tuple[Analysis, TraceSummary]:
    try:
        trace = read_tables(folder, without=NOT_COMPARED)
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
        raise RecordError(f"not an analysed rank ({error})", where=folder, next_step="analyse it again") from error
    rank = read(folder / RANK_FILE, _Rank, next_step="analyse it again")
    meta = replace(trace.meta, base_ns=rank.base_ns)
    device = rank.summary.device
    return Analysis(Path(rank.path), replace(trace, rank=rank.summary.rank, meta=meta), device, {}), rank.summary


def _link(source: Path, target: Path) -> None:
    """A second name for a file; a copy where the file system knows no such thing."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
