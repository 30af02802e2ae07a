"""What a step saves against a baseline, by the same draws of a GPU."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np

from steptrace.documents.estimate import (
    ClassSaving,
    PairedDifference,
    PartSaving,
)
from steptrace.estimate.figures import band_ms, four_digits, rounded_band
from steptrace.estimate.kernel_classes import (
    HOST_COPY,
)
from steptrace.estimate.queue import DrawnTimes
from steptrace.estimate.times import Draws, band

if TYPE_CHECKING:  # a program that asks for its own estimate has no msgspec
    pass
from steptrace.estimate.drawn import StepDraws

#: A class of kernels with a smaller share of the saved GPU work is not listed.
_LEAST_OF_SAVING: Final = 0.1


def difference(drawn: StepDraws, baseline: StepDraws, name: str) -> PairedDifference:
    """What a step saves compared with the baseline of this name, draw by draw."""
    saved = baseline.timeline.step - drawn.timeline.step
    return PairedDifference(
        baseline=name,
        saved_ms=band_ms(saved),
        times_as_fast=rounded_band(band(baseline.timeline.step / drawn.timeline.step)),
        faster_pct=four_digits(100 * float(np.mean(saved > 0))),
        gpu_saved_ms=band_ms(baseline.timeline.gpu - drawn.timeline.gpu),
        gpu_classes=tuple(_class_savings(drawn, baseline)),
        mean_ms=(_mean_ms(baseline.timeline.step), _mean_ms(drawn.timeline.step)),
        parts=tuple(_part_savings(drawn, baseline)),
    )


def _part_savings(drawn: StepDraws, baseline: StepDraws) -> Iterable[PartSaving]:
    """The time that each part of a step saves: classes of kernels, the largest first, then what the GPU waits for.

    Figures are means, since these add up: their sum is the difference of the mean step times.
    """
    saved = baseline.timeline.step - drawn.timeline.step
    least = _LEAST_OF_SAVING * abs(float(np.mean(saved)))
    before, after = _seconds_by_class(baseline), _seconds_by_class(drawn)
    none = np.zeros_like(saved)
    changes = {kind: before.get(kind, none) - after.get(kind, none) for kind in (before | after)}
    rest = baseline.timeline.gpu - drawn.timeline.gpu
    for kind in sorted(changes, key=lambda name: -abs(float(np.mean(changes[name])))):
        if abs(float(np.mean(changes[kind]))) >= least > 0:
            yield _part_saving("copies" if kind == HOST_COPY else "compute", kind, changes[kind])
            rest = rest - changes[kind]
    yield _part_saving("compute", None, rest)
    waits_before, waits_after = _waits(baseline.timeline), _waits(drawn.timeline)
    for part, seconds in waits_before.items():
        yield _part_saving(part, None, seconds - waits_after[part])


def _waits(timeline: DrawnTimes) -> dict[str, Draws]:
    """The time that the GPU waits in a step, by cause. With the GPU's work this adds up to the step time."""
    without_syncs = np.maximum(timeline.gpu, timeline.host)
    return {
        "idle_host": without_syncs - timeline.gpu,
        "idle_sync": timeline.step - without_syncs - timeline.exposed,
        "exposed_comm": timeline.exposed,
    }


def _part_saving(part: str, kind: str | None, saved: Draws) -> PartSaving:
    return PartSaving(part=part, kind=kind, mean_ms=_mean_ms(saved), saved_ms=band_ms(saved))


def _mean_ms(seconds: Draws) -> float:
    """The mean over the draws in ms, not rounded, so that sums agree to the last digit."""
    return 1000 * float(np.mean(seconds))


def _class_savings(drawn: StepDraws, baseline: StepDraws) -> Iterable[ClassSaving]:
    """The classes with most of the GPU work that a step saves; empty if it saves none."""
    saved = float(np.median(baseline.timeline.gpu - drawn.timeline.gpu))
    if saved <= 0:
        return
    before, after = _seconds_by_class(baseline), _seconds_by_class(drawn)
    changes = {kind: seconds - after.get(kind, 0.0) for kind, seconds in before.items()}
    for kind, change in sorted(changes.items(), key=lambda item: -float(np.median(item[1]))):
        if float(np.median(change)) < _LEAST_OF_SAVING * saved:
            return
        yield ClassSaving(kind=kind, saved_ms=band_ms(change))


def _seconds_by_class(drawn: StepDraws) -> dict[str, Draws]:
    """The seconds of each class of kernels in a step, in every draw."""
    by_class: dict[str, Draws] = {}
    for item, seconds in zip(drawn.launched, drawn.seconds, strict=True):
        by_class[item.kernel.kind] = by_class.get(item.kernel.kind, 0.0) + seconds * item.calls
    return by_class
