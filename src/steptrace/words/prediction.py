"""The places of a prediction in words: what `steptrace predict` prints, and `print(syncs)` in Python."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from steptrace.documents.estimate import Estimate
from steptrace.documents.prediction import PredictedPlace, PredictedStep, PredictedSync
from steptrace.documents.syncs import AwaitedBranch
from steptrace.format import columns, count, plural
from steptrace.words.estimate import step_words

#: The note on values that a program prints while it is followed.
PLACEHOLDERS: Final = "the program runs on a virtual GPU: losses that it prints are placeholders, not results"


def predicted_in_words(prediction: PredictedStep, verb: str = "", notes: Sequence[str] = ()) -> str:
    """The syncs of a prediction: "3 syncs per step", where steps differ "2.1 syncs per step (42 in 20 steps)".

    Args:
        prediction: what was predicted.
        verb: what follows the number, with a space before it.
        notes: further notes for the parentheses.
    """
    by_step = prediction.by_step
    counted = [f"{count(sum(by_step))} in {len(by_step)} steps"] if len(set(by_step)) > 1 else []
    noted = ", ".join([*counted, *notes])
    return f"{plural(prediction.syncs_per_step, 'sync')} per step{verb}" + (f" ({noted})" if noted else "")


def predicted_for_gpu(prediction: PredictedStep, estimates: Sequence[Estimate]) -> str:
    """The syncs that are predicted for a GPU, and the estimated step time on each, as a sentence."""
    times = [f"{step_words(estimate)} on {estimate.gpu}" for estimate in estimates if estimate.step_ms is not None]
    return f"Predicted for a GPU: {', '.join([predicted_in_words(prediction), *times])}."


def places_in_words(prediction: PredictedStep, most: int | None = None) -> list[str]:
    """The lines on a prediction's places: a table of syncs, then the places that were not judged or read early.

    With `most`, only that number of rows is listed, those with most syncs, with the number of the other rows.
    """
    lines = []
    if prediction.sites:
        rows = [
            (
                sync.site.how_often,
                sync.kind,
                sync.op,
                sync.phase,
                sync.label or "-",
                place_in_words(sync),
                sync.code or "",
            )
            for sync in most_first(prediction.sites)
        ]
        lines += columns(("count", "kind", "operator", "phase", "label", "line", "code"), rows[:most])
        if most is not None and len(rows) > most:
            lines.append(f"  and {plural(len(rows) - most, 'more place')}; --json lists all")
    if unknown := prediction.not_covered:
        lines.append("  not covered, so there may be more:")
        lines += [_listed(place) for place in unknown]
    if prediction.early_reads:
        lines.append("  read before the copy to the host is known to be over, so the value may be wrong:")
        lines += [_listed(place) for place in prediction.early_reads]
        lines.append("    record an event behind the copy, and wait for it before the value is read")
    if prediction.assumed:
        lines.append("  a value or size was assumed at these lines, so later counts may differ:")
        lines += [_listed(place) for place in prediction.assumed]
    return lines


def place_in_words(place: PredictedPlace) -> str:
    """The line of a place: "main.py:39", with the library's line that it leads to."""
    if place.file is None:
        return "no line of the program"
    line = f"{place.file}:{place.line}"
    return line if place.program_file is None else f"{place.program_file}:{place.program_line} (in {line})"


def awaited_in_words(branch: AwaitedBranch, followed: int | None) -> str:
    """A sentence on a line at which the program waits for its step counter, without a full stop.

    `followed` is the number of followed steps, or None if it is not known.
    """
    when = "some time" if branch.in_steps is None else plural(branch.in_steps, "step")
    steps = "followed steps" if followed is None else plural(followed, "followed step")
    return f"{branch.place} does something else {when} after the {steps}"


def most_first(sites: Sequence[PredictedSync]) -> list[PredictedSync]:
    """The sites by line, the line with most syncs first; lines with equally many in the order of the step."""
    by_line: dict[str, float] = defaultdict(float)
    for site in sites:
        by_line[place_in_words(site)] += site.count_per_step
    ranked = sorted(by_line, key=lambda line: -by_line[line])
    return sorted(sites, key=lambda site: ranked.index(place_in_words(site)))


def _listed(place: PredictedPlace) -> str:
    """The line of a place that may sync, or where a value was assumed."""
    return f"    {place.op} at {place_in_words(place)} ({place.site.how_often_in_words}): {place.reason}"
