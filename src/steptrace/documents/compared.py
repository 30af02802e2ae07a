"""compare.json: several results of one study, each held against the one before it. Unmeasured is null."""

from typing import Annotated

from steptrace.documents.base import Document, File, field
from steptrace.documents.column import column
from steptrace.documents.comparison import RatioToBaseline, StepTimes


class Result(Document, frozen=True):
    """One result: a comparison.json."""

    file: Annotated[str, field("The file.")]
    measured_at: Annotated[str | None, field("When its last measured run started (ISO 8601).")]
    machine: Annotated[str, field("GPU, or processor, and scale.")]
    step_ms: Annotated[dict[str, StepTimes | None], field("Step times by variant.")]


class Difference(Document, frozen=True):
    """A figure on both sides, in words; null where it was not measured."""

    name: Annotated[str, field("The figure, or the key of the environment.")]
    before: str | None
    now: str | None


class VariantChange(Document, frozen=True):
    """A variant that both results have."""

    name: Annotated[str, field("Variant.")]
    ratio: Annotated[
        RatioToBaseline | None,
        column(
            "Before / now",
            "Unprofiled step time of a result over that of the next: above 1, the next is faster. Judged as within a "
            "study, unpaired.",
        ),
    ]
    differing: Annotated[
        tuple[Difference, ...],
        column(
            "Other figures", "Counts and words that differ; memory and shares of time that move by a tenth or more."
        ),
    ]


class Change(Document, frozen=True):
    """What changed from one result to the next."""

    variants: tuple[VariantChange, ...]
    environment: Annotated[tuple[Difference, ...], field("Keys of the environment that differ, and the scale.")]
    only_before: Annotated[tuple[str, ...], field("Variants of the result before alone.")]
    only_now: Annotated[tuple[str, ...], field("Variants of this result alone.")]
    findings_before: Annotated[tuple[str, ...], field("Findings of the result before alone.")]
    findings_now: Annotated[tuple[str, ...], field("Findings of this result alone.")]
    notes: Annotated[tuple[str, ...], field("What to read with care.")]


class ComparedResults(File, frozen=True, kw_only=True):
    """The content of compare.json."""

    study: Annotated[str, field("Name of the study.")]
    title: Annotated[str, field("Its title.")]
    results: Annotated[tuple[Result, ...], field("In the order in which they were named.")]
    changes: Annotated[tuple[Change, ...], field("From each result to the next: one fewer than results.")]
