"""verdict.json: whether a whole workflow passed, and what did not."""

from typing import Annotated, Literal

from steptrace.documents.base import Document, File, field
from steptrace.documents.comparison import GateOutcome


class Failure(Document, frozen=True):
    """A failed run or equivalence check."""

    study: Annotated[str, field("Study.")]
    variant: Annotated[str, field("Variant.")]
    run: Annotated[str, field("`run0`, `run1`, ..., or `equivalence`.")]
    status: Annotated[str, field("`failed`, `out of memory`, `killed` or `not run`.")]
    error: Annotated[str | None, field("The error in one line.")]


class Differing(Document, frozen=True):
    """A variant whose result lies outside the tolerance: marked, not failed."""

    study: Annotated[str, field("Study.")]
    variant: Annotated[str, field("Variant.")]
    max_rel_err: Annotated[float | None, field("Largest relative error; null if it is not finite.")]


class Verdict(File, frozen=True, kw_only=True):
    """The content of verdict.json."""

    status: Annotated[Literal["pass", "fail"], field("`fail` if anything failed or a gate is broken.")]
    runs: Annotated[int, field("Runs of all studies.")]
    failed: tuple[Failure, ...]
    differs: tuple[Differing, ...]
    gates: Annotated[tuple[GateOutcome, ...], field("Every gate.")]
