"""The picture of a step."""

from typing import Annotated, Literal

import msgspec

from steptrace.documents.base import Document, column, described, field

#: What a lane shows: the parts of the step on the host (in a picture of several ranks, on that of one rank); the
#: operators of a thread, those that the program calls; syncs; the parts of the GPU's time (or of one rank's GPU); the
#: work of a stream.
LaneKind = Literal["host", "operators", "syncs", "gpu", "stream"]


class Box(Document, frozen=True):
    """Something that ran for a time in a lane, or several of one part that ran close to each other."""

    start_ns: Annotated[int, field("Start, from the start of the step.")]
    dur_ns: Annotated[int, field("Its length; of several the sum of their lengths.")]
    part: Annotated[str, field("What it is: a part of the step, a class of GPU work, `operator` or `sync`.")]
    name: Annotated[str | None, field("Its name; of several the longest one's; null if the part says it.")] = None
    count: Annotated[int, field("How many it stands for.")] = 1
    file: Annotated[str | None, field("File of the program's line that caused it; of several the longest one's.")] = (
        None
    )
    line: Annotated[int | None, field("The line.")] = None


class Lane(Document, frozen=True):
    """One lane of the picture of a step."""

    name: Annotated[str, field("What stands at it.")]
    kind: Annotated[LaneKind, field("What it shows.")] = "host"
    boxes: Annotated[
        tuple[Box, ...],
        column(
            "Box",
            "Something that ran, as wide as the time that it took. Neighbours of the same part that are too short to "
            "be seen are one box, as wide as all of them together.",
            kind="first",
        ),
    ] = ()
    parts: Annotated[
        dict[str, tuple[int, ...]],
        field("In files of earlier releases, instead of boxes: shares of the time by part.", kind="first"),
    ] = msgspec.field(default_factory=dict)


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


@described("One step of several ranks, as a picture shows it: a lane a rank.")
class RankTimeline(Timeline, frozen=True):
    is_aligned: Annotated[
        bool,
        field("Whether the lanes are on one clock; otherwise each begins at its own rank's step.", kind="first"),
    ] = True
