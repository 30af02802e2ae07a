"""A stage of a pipeline waits for its neighbours for a part of the step."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal

from steptrace.documents.base import field
from steptrace.documents.subjects.pipeline import SUBJECT, PipelineStage
from steptrace.findings.rule import Match, Rule, Threshold, TraceFigures, Words, advise
from steptrace.findings.thresholds import HIGH, MODERATE
from steptrace.findings.window import Window
from steptrace.format import count, duration, plural, share

_FEW: Final = Threshold(4, "GPipe: with four microbatches a stage the bubble is negligible", unit="")
_OVER_IDEAL: Final = Threshold(1.25, "ours", unit="")

#: What the advice is about.
Remedy = Literal["few_microbatches", "uneven_stages"]


class Figures(TraceFigures, frozen=True, kw_only=True):
    """The bubble of a stage in a mean step."""

    group: Annotated[str | None, field("Name of the process group; null for batches of sends and receives.")]
    receives: Annotated[float, field("Receives, and batches of sends and receives.")]
    wait_ns: Annotated[float, field("Time in them that no computation hides.")]
    idle_ns: Annotated[float, field("Idle time of the GPU beside them.")]
    bubble_share: Annotated[float, field("Both as a share of the step.")]
    stages: Annotated[int | None, field("Stages of the pipeline; null where they are not known.")]
    microbatches: Annotated[float | None, field("Microbatches in a step; null where they cannot be counted.")]
    ideal_share: Annotated[float | None, field("Bubble of equal stages; null where it is not known.")]
    remedies: Annotated[tuple[Remedy, ...], field("What the advice is about; empty: general advice.")]


def _find(window: Window) -> Iterator[Match[Figures]]:
    for row in SUBJECT.rows_of(window.entry):
        wait_ns, idle_ns = window.per_step(row.wait_ns), window.per_step(row.idle_ns)
        bubble = window.share(wait_ns + idle_ns)
        if bubble < MODERATE.value:
            continue
        yield Match(
            severity="warning" if bubble >= HIGH.value else "info",
            figures=Figures(
                steps=window.steps,
                step_ns=window.step_ns,
                device_module=window.entry.device_module,
                group=row.group,
                receives=window.per_step(row.receives),
                wait_ns=wait_ns,
                idle_ns=idle_ns,
                bubble_share=bubble,
                stages=None if row.stages is None else round(row.stages),
                microbatches=row.microbatches,
                ideal_share=row.ideal_bubble,
                remedies=tuple(_remedies(row, bubble)),
            ),
            cost_ns_per_step=wait_ns + idle_ns,
        )


def _remedies(row: PipelineStage, bubble: float) -> Iterator[Remedy]:
    if row.ideal_bubble is None or row.microbatches is None or row.stages is None:
        return
    if row.microbatches < _FEW.value * row.stages:
        yield "few_microbatches"
    if bubble >= _OVER_IDEAL.value * row.ideal_bubble:
        yield "uneven_stages"


def _words(figures: Figures) -> Words:
    per = figures.per
    of_group = "" if figures.group is None else f" of process group {figures.group}"
    receives = plural(round(figures.receives, 2), "receive")
    evidence = [
        f"{duration(figures.wait_ns)} {per} in {receives}{of_group} without computation, transfer included",
        f"{duration(figures.idle_ns)} {per} in which the GPU is idle beside them",
    ]
    if figures.ideal_share is not None and figures.microbatches is not None and figures.stages is not None:
        evidence.append(
            f"{share(figures.ideal_share)} is the bubble of {figures.stages} equal stages with "
            f"{count(figures.microbatches)} microbatches {per}"
        )
    else:
        evidence.append(
            "the ideal bubble is not known, because the trace does not say how many microbatches or stages there are"
        )
    return Words(
        f"waiting for other stages of the pipeline takes {share(figures.bubble_share)} of the time",
        tuple(evidence),
        advice=tuple(part for remedy in figures.remedies for part in _ADVICE[remedy]),
    )


_ADVICE: Final[Mapping[Remedy, tuple[str, ...]]] = {
    "few_microbatches": advise(
        "Use more and smaller microbatches, or a schedule with a smaller bubble (interleaved stages, zero bubble)."
    ),
    "uneven_stages": advise(
        "Equal stages with as many microbatches would wait less: compare the stages' computation, move layers "
        "from the longest stage to others, and let sends and receives run beside computation.",
    ),
}

RULE: Final = Rule(
    name="pipeline_bubbles",
    topic="communication",
    figures=Figures,
    told_apart_by=("group",),
    words=_words,
    in_trace=_find,
    condition="waiting in receives that no computation hides, and idle time beside them, take at least {least} of the "
    "step; a warning from {high} on. The advice also asks whether a step has less than {few} microbatches for each "
    "stage, and whether the bubble is {over} times the ideal one or more",
    thresholds={"least": MODERATE, "high": HIGH, "few": _FEW, "over": _OVER_IDEAL},
    source="the ideal bubble of p equal stages with m microbatches is (p - 1) / (m + p - 1) of the step, as for GPipe",
    advice=advise(
        "Use more and smaller microbatches, a schedule with a smaller bubble (1F1B with interleaved stages, zero "
        "bubble), and stages of equal length.",
    ),
    counter_check="Train with twice as many microbatches: the bubble of a pipeline gets smaller, and waiting that "
    "stays has another cause. A ring (of attention over several ranks) sends and receives, too, and has no bubble: "
    "there the transfer is what takes the time.",
    gpu_work=True,
)
