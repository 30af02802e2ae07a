"""Notes on what to read with care in a run, a variant or a trace. `words.notes` makes their sentences."""

from typing import Annotated, Any, Final, Literal, get_args

from steptrace.documents.base import Document, field

#: Notes of a measured run.
RunNoteCode = Literal[
    "fewer_timed_steps",
    "fewer_profiled_steps",
    "compiled_without_lines",
    "lines_incomplete",
    "sync_check_left_out",
    "recompiled",
    "nvml_unavailable",
    "nvml_figure_missing",
    "other_processes",
    "clocks_lowered",
    "trace_fault",
    "steps_skipped",
    "ended_early",
]
#: Notes on uneven steps or runs, which the finding `noise` is about.
UnevenCode = Literal["uneven_steps", "runs_differ", "drift", "outliers"]
#: Notes on why a variant has no verdict.
NoVerdictCode = Literal["too_few_runs", "too_uneven"]
#: Notes of a comparison on a variant.
VariantNoteCode = Literal[
    "runs_missing",
    "trace_not_analysed",
    "taken_apart",
    "no_baseline",
    "twin_differs",
    "noise_floor_too_high",
    "within_noise_floor",
    "lost_by_correction",
    "syncs_differ_between_runs",
    "syncs_differ_between_steps",
    "predicted_syncs_differ",
    "early_read",
    "not_predicted",
    "prediction_not_used",
    "nothing_predicted",
    "trace_quality",
]
#: Notes of the reader of a trace on its events.
ReaderNoteCode = Literal[
    "texts_repaired",
    "parts_left_out",
    "events_not_read",
    "impossible_events",
    "repeated_events",
    "unfinished_events",
    "profiler_lost_records",
    "excerpt",
]
#: Notes on a set of traces that were read together.
TracesNoteCode = Literal["traces_left_out", "trace_not_read", "ranks_repeated", "ranks_not_read"]
NoteCode = Literal[RunNoteCode, UnevenCode, NoVerdictCode, VariantNoteCode, ReaderNoteCode, TracesNoteCode]

NO_VERDICT: Final[frozenset[str]] = frozenset(get_args(NoVerdictCode))
UNEVEN: Final[frozenset[str]] = frozenset(get_args(UnevenCode))


class Note(Document, frozen=True):
    """One thing to read with care."""

    code: Annotated[NoteCode, field("What it is.")]
    figures: Annotated[dict[str, Any], field("Its figures, names and settings, by name.")]


def note(code: NoteCode, **figures: Any) -> Note:
    """A note with its figures."""
    return Note(code=code, figures=figures)
