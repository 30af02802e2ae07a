"""Several results of one study in words: figures that differ, and what to read with care."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from steptrace import format as fmt
from steptrace.documents.comparison import ChangeNote, ChangeNoteCode, FigureOfChange

#: The notes that say why no step times are compared: a reader has to know these first.
NOT_COMPARED: Final[tuple[ChangeNoteCode, ...]] = ("same_result", "other_scale")
#: The name of a figure, and how its value is written.
_FIGURES: Final[Mapping[FigureOfChange, tuple[str, Callable[[Any], str]]]] = {
    "status": ("status", str),
    "equivalence.status": ("answer", str),
    "ratio.verdict": ("against its baseline", str),
    "syncs.measured_per_step": ("syncs per step, measured", fmt.count),
    "syncs.predicted_per_step": ("syncs per step, predicted", fmt.count),
    "operators_per_step": ("operators per step", fmt.count),
    "kernels_per_step": ("kernels per step", fmt.count),
    "peak_allocated_bytes": ("peak memory", fmt.size_bytes),
    "gpu_busy_pct": ("GPU busy", fmt.percent),
    "input.share": ("waiting for data", fmt.share),
    "profiled_over_unprofiled": ("profiled over unprofiled", fmt.ratio),
}


def figure_name(figure: FigureOfChange) -> str:
    """The name of a figure."""
    return _FIGURES[figure][0]


def figure_text(figure: FigureOfChange, value: Any) -> str | None:
    """A figure's value; None where it was not measured."""
    return None if value is None else _FIGURES[figure][1](value)


def environment_text(key: str, value: Any) -> str | None:
    """The value of a key of the environment; None where it has none."""
    if value is None:
        return None
    return fmt.size_bytes(value) if key.endswith("_bytes") else str(value)


def change_note_text(note: ChangeNote) -> str:
    """One thing to read with care in a comparison of two results."""
    return _NOTES[note.code](**note.figures)


def _reconfigured(*, variants: Sequence[str]) -> str:
    return f"another configuration than before: {fmt.names(variants)}"


def _too_uneven(*, variants: Sequence[str], most: float) -> str:
    return f"no verdict, IQR/median of the steps is above {fmt.setting(most)}: {fmt.names(variants)}"


def _not_measured(*, before: Sequence[str], now: Sequence[str]) -> str:
    sides = [("the first", before), ("the second", now)]
    return f"no step time {', '.join(f'of {fmt.names(variants)} in {where}' for where, variants in sides if variants)}"


def _too_few_runs(*, variants: Sequence[str]) -> str:
    return f"no verdict, since it takes two runs of each side: {fmt.names(variants)}"


_NOTES: Final[Mapping[ChangeNoteCode, Callable[..., str]]] = {
    "same_result": lambda: "both are the same result, so nothing can differ",
    "other_scale": lambda: "the scales differ, so step times cannot be compared",
    "means": lambda: "step times are means, since long steps come back in some of them",
    "reconfigured": _reconfigured,
    "not_measured": _not_measured,
    "too_few_runs": _too_few_runs,
    "too_uneven": _too_uneven,
    "runs_apart": lambda: "the runs did not alternate, so other changes of the machine are part of the difference",
}
