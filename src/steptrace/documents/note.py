"""What to read with care in a run, a variant or a trace: a code with its figures. `words.notes` makes the sentence."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, get_args

from steptrace.documents.base import Document, field

#: What a measured run says of itself.
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
#: In which way steps or runs are uneven: what the finding `noise` is about.
UnevenCode = Literal["uneven_steps", "runs_differ", "drift", "outliers"]
#: Why a variant has no verdict.
NoVerdictCode = Literal["too_few_runs", "too_uneven"]
#: What a comparison says of a variant.
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
#: What the reader of a trace has done with its events.
ReaderNoteCode = Literal["texts_repaired", "events_not_read", "impossible_events"]
NoteCode = Literal[RunNoteCode, UnevenCode, NoVerdictCode, VariantNoteCode, ReaderNoteCode]

NO_VERDICT: Final[frozenset[str]] = frozenset(get_args(NoVerdictCode))
UNEVEN: Final[frozenset[str]] = frozenset(get_args(UnevenCode))


class Note(Document, frozen=True):
    """One thing to read with care."""

    code: Annotated[NoteCode, field("What it is.")]
    figures: Annotated[dict[str, Any], field("Its figures, names and settings, by name.")]


def note(code: NoteCode, **figures: Any) -> Note:
    """A note with its figures."""
    return Note(code=code, figures=figures)


def notes_of(recorded: object) -> tuple[Note, ...]:
    """The notes that a process has recorded as plain data."""
    items = recorded if isinstance(recorded, list | tuple) else ()
    return tuple(Note(code=item["code"], figures=dict(item["figures"])) for item in items if isinstance(item, Mapping))
