"""A run's summary.json: what its traces say, with findings."""

import logging
import shutil
from pathlib import Path

from msgspec.structs import replace

from steptrace.analysis import RANK_FILE, Analysis, summarize, summarize_ranks, write_rank
from steptrace.documents.base import write
from steptrace.documents.summary import Summary
from steptrace.errors import SteptraceError
from steptrace.findings import with_trace_findings
from steptrace.record import read_status
from steptrace.trace.excerpt import excerpt_of_run

TABLES = "tables"
#: Where each rank's tables are, by its number, if it was analysed by itself.
RANKS = "ranks"
_ERROR = "error.txt"


def analyze_rank(run_dir: Path, rank: int, folder: Path) -> None:
    """Analyse one rank of a run into a folder, for `summarize_run`; no `RANK_FILE` if it left no such trace."""
    folder.mkdir(parents=True, exist_ok=True)
    for trace in _traces(run_dir)[rank : rank + 1]:
        try:
            write_rank(trace, folder)
        except SteptraceError as error:
            (folder / _ERROR).write_text(str(error), encoding="utf-8")


def summarize_run(run_dir: Path, out: Path, *, ranks: int = 0) -> None:
    """Write the summary of a run's traces to `out` and its tables beside them; without traces if the run left none.

    The first repeat gets an excerpt, too: one a variant is what a page names. A trace that cannot be read is a warning
    and the summary's `error`: step times count without a trace.

    Args:
        run_dir: the run's folder.
        out: the file to write.
        ranks: how many `analyze_rank` has analysed, so that only what compares them is left to do; 0: none.
    """
    tables = run_dir / TABLES
    _make_empty(tables)
    summary = Summary(warnings=(), traces=())
    if traces := _traces(run_dir):
        try:
            summary, analyses = _of_ranks(run_dir, ranks) if ranks else summarize(traces, tables=tables)
            if run_dir.name == "run0":
                summary = replace(summary, trace_excerpt=excerpt_of_run(analyses[0].path, tables))
        except SteptraceError as error:
            if not summary.traces:
                _make_empty(tables)  # of the ranks that could be read
            summary = replace(summary, error=str(error))
            logging.getLogger(__name__).warning("%s: %s", run_dir, error)
    write(out, with_trace_findings(summary))


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def _traces(run_dir: Path) -> list[Path]:
    """The traces of a run that ended well."""
    found = sorted(run_dir.glob("trace*.json.gz"))
    return found if found and read_status(run_dir).status == "ok" else []


def _of_ranks(run_dir: Path, ranks: int) -> tuple[Summary, list[Analysis]]:
    folders = [run_dir / RANKS / str(rank) for rank in range(ranks)]  # an earlier run may have left more
    for folder in folders:
        if (folder / _ERROR).is_file():
            raise SteptraceError((folder / _ERROR).read_text(encoding="utf-8"))
    return summarize_ranks([folder for folder in folders if (folder / RANK_FILE).is_file()], run_dir / TABLES)
