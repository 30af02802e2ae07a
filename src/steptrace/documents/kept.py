"""Step times that are kept: stored baselines, and history.json, which is made of them. Unmeasured is null.

Baselines (baselines/NAME.json) are committed, so the facts of a machine are open in them.
"""

from typing import Annotated, Any

from steptrace.documents.base import Document, File, field
from steptrace.documents.comparison import StepTimes, Verdict


class StoredVariant(Document, frozen=True):
    """What is stored of a variant: keys and values as in comparison.json."""

    digest: Annotated[str | None, field("Digest of its configuration.")]
    step_ms: StepTimes
    peak_allocated_bytes: Annotated[int | None, field("Highest of all runs, whole training.", "B")]


class StoredStudy(Document, frozen=True):
    """What is stored of a study."""

    scale: Annotated[str, field("Scale that it ran at.")]
    environment: Annotated[dict[str, Any], field("Where it ran, as in comparison.json.")]
    variants: Annotated[dict[str, StoredVariant], field("Its measured variants by name.")]


class Baseline(File, frozen=True, kw_only=True):
    """The content of a baseline file."""

    saved_at: Annotated[str, field("When it was saved (ISO 8601).")]
    studies: Annotated[dict[str, StoredStudy], field("The studies by name.")]


class EnvironmentChange(Document, frozen=True):
    """A key of the environment that is not what it was in the result before."""

    key: Annotated[str, field("Key, as in comparison.json's `environment`; `scale`.")]
    before: Annotated[str | None, field("Its value in the result before.")]
    now: Annotated[str | None, field("Its value in this one.")]


class KeptVariant(Document, frozen=True):
    """A variant in one result."""

    name: Annotated[str, field("Variant.")]
    median_ms: Annotated[float, field("Median step time.", "ms")]
    low_ms: Annotated[float | None, field("Lower end of its interval.", "ms")]
    high_ms: Annotated[float | None, field("Upper end of its interval.", "ms")]
    ratio: Annotated[
        float | None, field("Step time before over this one: above 1 is faster. Null without one of the same machine.")
    ]
    verdict: Annotated[Verdict | None, field("Of this against the one before; null without whole runs of both.")]
    reconfigured: Annotated[bool, field("Whether its configuration is known to be another than in the one before.")]


class KeptRun(Document, frozen=True):
    """One result of a study."""

    name: Annotated[str, field("Its file.")]
    date: Annotated[str | None, field("When it was measured or kept (ISO 8601); null of the present one.")]
    machine: Annotated[str, field("GPU, or processor, and scale.")]
    compared_with: Annotated[str | None, field("File of the result before on the same machine.")]
    changes: Annotated[tuple[EnvironmentChange, ...], field("Of the environment, since the result before.")]
    variants: tuple[KeptVariant, ...]


class StudyHistory(Document, frozen=True):
    """A study's results."""

    study: Annotated[str, field("Study.")]
    results: Annotated[tuple[KeptRun, ...], field("Oldest first.")]


class Skipped(Document, frozen=True):
    """A file that holds no result."""

    file: Annotated[str, field("The file.")]
    reason: Annotated[str, field("Why it was skipped.")]


class History(File, frozen=True, kw_only=True):
    """The content of history.json."""

    studies: tuple[StudyHistory, ...]
    skipped: tuple[Skipped, ...]
