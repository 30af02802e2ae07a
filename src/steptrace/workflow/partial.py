"""The pages of studies that are not done: what exists, compared and marked as partial.

May be called at any moment, also while the workflow runs and after it was killed. No rule takes anything of it for
done: the comparison and the summaries have names of their own, and an earlier comparison.json, which is no longer of
what lies there, is removed, so that the next call of the workflow makes it and the page anew.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from steptrace import standing
from steptrace.record import STATUS_FILE, ended_well


def write_partial_pages(results: Path, pages: Path) -> list[Path]:
    """Compare what there is of every study that has begun and is not done; write its page, and the index.

    Args:
        results: the workflow's results/.
        pages: its reports/.

    Returns:
        The pages written; empty if no study is between its first run and its end.
    """
    begun = {
        study: [run for run in standing.planned_runs(study) if (run / STATUS_FILE).is_file()]
        for study in standing.study_folders(results)
        if not standing.is_whole(study)
    }
    begun = {study: runs for study, runs in begun.items() if runs}
    if not begun:  # as at most ends of a workflow: it does without what takes a second to import
        return []

    from steptrace.compare.study import compare
    from steptrace.documents.base import write
    from steptrace.findings import with_findings
    from steptrace.report.notebook import render_index, render_study

    _summarize([run for runs in begun.values() for run in runs])
    written = []
    for study in begun:
        partial = write(study / standing.PARTIAL, with_findings(compare(study, partial=True)))
        (study / standing.WHOLE).unlink(missing_ok=True)
        written.append(pages / f"{study.name}.html")
        render_study(partial, written[-1])
    traces = sorted(results.glob("traces/*/summary.json"))
    written.append(pages / "index.html")
    render_index(standing.comparisons_with_pages(results, pages), written[-1], traces)
    return written


def _summarize(runs: Sequence[Path]) -> None:
    """Make the summaries that the workflow has not come to make, several at once."""
    from steptrace.workflow.run_summary import summarize_run

    missing = [run for run in runs if _needs_summary(run)]
    if missing:
        workers = min(len(missing), os.cpu_count() or 1)
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            list(pool.map(summarize_run, missing, [run / standing.PARTIAL_SUMMARY for run in missing]))


def _needs_summary(run: Path) -> bool:
    status = run / STATUS_FILE
    made = [run / name for name in (standing.SUMMARY, standing.PARTIAL_SUMMARY)]
    return ended_well(run) and not any(f.is_file() and f.stat().st_mtime >= status.stat().st_mtime for f in made)
