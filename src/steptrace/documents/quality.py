"""How far a trace can be trusted."""

from typing import Annotated

from steptrace.documents.base import Document, column, field, key


class QualityCheck(Document, frozen=True):
    """One thing that can be wrong with a trace, and how much of it is.

    It warns if what is missing could change a figure.
    """

    check: Annotated[str, key("Check", "What was looked for.")]
    wrong: Annotated[int, column("Wrong", "How many are wrong.")]
    of: Annotated[int, column("Of", "Of how many.")]
    warns: Annotated[bool, column("Warns", "Whether that is enough to warn of.")]
    says: Annotated[str, column("Result", "The warning, or that all is well.")]


class Quality(Document, frozen=True):
    """What a reader should know before trusting a trace's figures."""

    steps: Annotated[int, field("Steps counted.")]
    launch_coverage: Annotated[float | None, column("GPU work with its launch", "Of GPU activities.", "share")]
    warnings: Annotated[tuple[str, ...], field("The reader's notes and the checks that failed.")]
    checks: Annotated[tuple[QualityCheck, ...], field("Every check.")]
