"""A diff in words: what makes most of the difference, and what makes the two sides hard to compare."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from steptrace import format as fmt
from steptrace.documents.diff import DiffCause, DiffNote, DiffNoteCode
from steptrace.documents.note import NoteCode
from steptrace.documents.overview import part_name
from steptrace.words.notes import text_of

#: Longer names are cut in the middle.
_LONGEST_NAME: Final = 80
_LACKING: Final = {"a": "A has no", "b": "B has no", "both": "Neither side has any"}


def cause_in_words(cause: DiffCause) -> str:
    """How long a step takes on both sides, and what makes most of the difference."""
    if cause.a_ns is None or cause.b_ns is None:
        return f"{_LACKING[cause.lacking or 'both']} profiled steps, so only unprofiled steps are compared."
    unit = "trace" if cause.whole_traces else "step"
    text = f"A profiled {unit} takes {fmt.duration_ns(cause.a_ns)} in A and {fmt.duration_ns(cause.b_ns)} in B"
    if cause.is_same:
        return f"{text}: no difference."
    if cause.part is not None and cause.part_ns is not None:
        text += f"; most of the difference is {part_name(cause.part)}, {fmt.signed_ns(cause.part_ns)}"
    if cause.row is not None and cause.row_ns is not None:
        at = f" ({cause.place})" if cause.place else ""
        name = fmt.clipped(cause.row, _LONGEST_NAME)
        text += f"; the kernel, operator or sync that changes most is {name}{at}, {fmt.signed_ns(cause.row_ns)}"
    return text + "."


def note_in_words(note: DiffNote) -> str:
    """One reason why the two sides are hard to compare."""
    return _WORDS[note.code](**note.figures)


def _other_gpus(*, a: Sequence[str], b: Sequence[str]) -> str:
    return f"A ran on {' and '.join(a)}, B on {' and '.join(b)}"


def _other_numbers_of_traces(*, a: int, b: int) -> str:
    return f"A is of {fmt.plural(a, 'trace')}, B of {b}: their steps are not the same work"


def _unprofiled_steps(*, a_ns: float, b_ns: float) -> str:
    return f"unprofiled steps take {fmt.duration_ns(a_ns)} in A and {fmt.duration_ns(b_ns)} in B"


def _trace_note(*, side: str, code: NoteCode, figures: Mapping[str, Any], file: str, traces: int, of: int) -> str:
    text = f"{side}: {text_of(code, figures)}"
    return text if of == 1 else f"{text} (in {traces} of {fmt.plural(of, 'trace')}; the figures are those of {file})"


_WORDS: Final[Mapping[DiffNoteCode, Callable[..., str]]] = {
    "other_gpus": _other_gpus,
    "other_numbers_of_traces": _other_numbers_of_traces,
    "few_kernels_of_both": lambda *, share: (
        f"only {fmt.share(share)} of GPU time is in kernels of both sides: the programs may differ"
    ),
    "few_steps": lambda: "one side has fewer than two steps, which may be untypical",
    "trace_not_read": lambda *, side, **figures: f"{side}: {text_of('trace_not_read', figures)}",
    "trace_note": _trace_note,
    "unprofiled_steps": _unprofiled_steps,
    "profiler_slows_one_side": lambda *, b_over_a: (  # noqa: ARG005
        "the profiler slows one side more than the other: compare unprofiled step times"
    ),
}
