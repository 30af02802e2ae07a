"""Which comparisons of studies there are, which of them are whole, and which an index shows.

`comparison.json` is written once everything of a study has run. While it has not, or anything is newer, what exists is
compared in `comparison.partial.json` beside it (`steptrace.workflow.partial`), which the next whole one replaces.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from steptrace.errors import RecordError

STUDY: Final = "study.json"
WHOLE: Final = "comparison.json"
PARTIAL: Final = "comparison.partial.json"
SUMMARY: Final = "summary.json"
#: Of a run, made for a partial comparison, before the workflow came to make the run's own.
PARTIAL_SUMMARY: Final = "summary.partial.json"


def study_folders(results: Path) -> list[Path]:
    """The folders of the studies that were planned at any time, by name."""
    return sorted(file.parent for file in results.glob(f"*/{STUDY}"))


def planned_runs(study: Path) -> list[Path]:
    """The folders of all runs that a study is to have.

    Raises:
        RecordError: its study.json is not what the workflow writes.
    """
    try:
        document = json.loads((study / STUDY).read_text(encoding="utf-8"))
        return [study / v["name"] / f"run{k}" for v in document["variants"] for k in range(document["repeats"])]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"the study cannot be read ({error!r})", where=study / STUDY) from error


def is_whole(study: Path) -> bool:
    """Whether a study's comparison.json is made of everything that was planned, as it lies there now."""
    whole = study / WHOLE
    return whole.is_file() and all(
        file.is_file() and file.stat().st_mtime <= whole.stat().st_mtime for file in _compared(study)
    )


def _compared(study: Path) -> Iterator[Path]:
    """The files that a whole comparison depends on."""
    yield study / STUDY
    runs = planned_runs(study)
    for run in runs:
        yield from (run / "status.json", run / "summary.json")
    for variant in dict.fromkeys(run.parent for run in runs):
        yield from (variant / "equivalence" / "status.json", variant / "prediction" / "status.json")


def comparisons_with_pages(results: Path, pages: Path) -> list[Path]:
    """What an index of everything shows: of each study that has a page, the comparison that the page was made of."""
    found = []
    for study in study_folders(results):
        partial, whole = study / PARTIAL, study / WHOLE
        comparison = partial if partial.is_file() else whole
        if comparison.is_file() and (pages / f"{study.name}.html").is_file():
            found.append(comparison)
    return found
