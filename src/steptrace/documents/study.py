"""study.json: a study as it was expanded, before anything of it has run."""

from typing import Annotated

from steptrace.documents.base import Document, File, field


class PlannedVariant(Document, frozen=True):
    """A variant that is to run."""

    name: Annotated[str, field("Its name; its folder's, too.")]
    overrides: Annotated[tuple[str, ...], field("Its difference to the baseline's configuration.")]
    hypothesis: Annotated[str | None, field("What its author expects.")]
    baseline: Annotated[str, field("The variant that it is compared with.")]
    digest: Annotated[str, field("Digest of its configuration.")]
    reference: Annotated[str | None, field("File of the configuration that its answer is held against.")] = None


class StudyFile(File, frozen=True, kw_only=True):
    """What every document on a study says of it."""

    title: Annotated[str, field("Its title.")]
    question: Annotated[str, field("What it asks.")]
    text: Annotated[str, field("What it is about.")]
    baseline: Annotated[str, field("The study's baseline.")]
    scale: Annotated[str, field("Scale that it runs at.")]


class PlannedStudy(StudyFile, frozen=True, kw_only=True):
    """The content of study.json."""

    name: Annotated[str, field("Name of the study.")]
    repeats: Annotated[int, field("Runs of each variant.")]
    variants: tuple[PlannedVariant, ...]
