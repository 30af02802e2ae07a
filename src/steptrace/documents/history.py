"""history.json: a study's kept results, oldest first, and what changed from each to the next. Unmeasured is null."""

from typing import Annotated

from steptrace.documents.base import Document, File, field
from steptrace.documents.comparison import Verdict


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
