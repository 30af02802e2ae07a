"""baselines/NAME.json: stored step times. Such files are committed and kept, so the facts of a machine are open."""

from typing import Annotated, Any

from steptrace.documents.base import Document, File, field
from steptrace.documents.comparison import StepTimes


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
