"""The bubble of a pipeline's stage: the time that it loses while it waits for its neighbours."""

from typing import Annotated, Final

from steptrace.documents.base import Row, column, described, field, key
from steptrace.documents.subject import TableSubject, subject


@described(
    """What this rank waits for in receives of one process group, as a stage of a pipeline does for its neighbours.

    The bubble is the time in which the GPU is in a receive and computes nothing, or is idle beside one. Idle time
    counts in gaps that end or begin with a receive, where a sync or a dependency causes them. The transfer itself is a
    part of the receive, and so of the bubble.

    A pipeline of p equal stages with m microbatches has an ideal bubble of (p - 1) / (m + p - 1) of the step. The
    number of microbatches is the number of receives of a step from one rank, the one that sends most. Of two ranks that
    send each other both activations and gradients, one direction counts. A rank with v interleaved stages receives each
    microbatch v times. They count as v times as many microbatches, and their ideal bubble is smaller for it.
    """
)
class PipelineStage(Row, frozen=True):
    group: Annotated[
        str | None,
        key("Process group", "Its name; none for batches without described parts."),
    ]
    receives: Annotated[int, column("Receives", "Receives, and batches of sends and receives.", kind="total")]
    wait_ns: Annotated[int, column("In receives", "Time in receives that no computation hides.", kind="total")]
    idle_ns: Annotated[int, column("Idle beside them", "Idle time of the GPU beside receives.", kind="total")]
    bubble: Annotated[float, column("Bubble", "Both as a share of the steps.", "share", kind="share")]
    stages: Annotated[int | None, field("Ranks of the group; null where it is not recorded.", kind="mean")]
    microbatches: Annotated[
        float | None,
        column("Microbatches", "Microbatches in a step; null where they cannot be counted.", kind="mean"),
    ]
    ideal_bubble: Annotated[
        float | None,
        column("Ideal bubble", "The share with equal stages; null without microbatches.", "share", kind="share"),
    ]


SUBJECT: Final = TableSubject(
    "pipeline",
    PipelineStage,
    subject("Pipeline bubbles", None, "needs_gpu", "compared", after="expert_loads"),
)
