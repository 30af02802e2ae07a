"""What is said of steps that differ: usual ones, and those that do something else now and then."""

from typing import Annotated

from steptrace.documents.base import Document
from steptrace.documents.column import column, key


class StepKind(Document, frozen=True):
    """The unprofiled steps of one kind: a validation, a rollout or a checkpoint makes some differ from most."""

    kind: Annotated[
        str,
        key(
            "Kind of step",
            "`other`, `other 2`: more or fewer operators, every so many steps; else at least twice the median time, if "
            "such steps lift the mean by over a tenth.",
        ),
    ]
    steps: Annotated[int, column("Steps", "How many of the timed steps are of this kind.")]
    of: Annotated[int, column("Of", "All timed steps.")]
    median_ns: Annotated[int, column("Median", "Median time of these steps.")]
    share: Annotated[float, column("Share of the time", "Of the time of all timed steps.", "share")]
    comes: Annotated[
        str,
        column("Comes", "How often, as far as these steps show: `every 16 steps`, `once`, `irregularly`, `mostly`."),
    ]
    syncs: Annotated[
        float | None,
        column("Syncs", "Median of the profiled steps of this kind."),
    ]
