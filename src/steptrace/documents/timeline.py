"""The picture of a step."""

from typing import Annotated

from steptrace.documents.base import Document, column, described, field


class Lane(Document, frozen=True):
    """One lane of the picture of a step."""

    name: Annotated[str, field("What stands at it.")]
    parts: Annotated[
        dict[str, tuple[int, ...]],
        column(
            "Height", "Of each equal piece of the step, the share of its time that a part takes.", "%", kind="first"
        ),
    ]


@described("One step, the median one, as a picture shows it.")
class Timeline(Document, frozen=True):
    step: Annotated[
        int | None,
        column(
            "Picture of a step",
            "The step of median time, or a whole trace without steps; all that ran meanwhile, slowed by the profiler.",
            kind="first",
        ),
    ]
    span_ns: Annotated[int, field("Its length.", kind="first")]
    lanes: Annotated[tuple[Lane, ...], field("From top to bottom.")]
