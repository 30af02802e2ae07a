"""The balance of all-to-alls with unequal parts, such as those of experts and of embedding tables."""

from typing import Annotated, Final

from steptrace.documents.base import Row, column, described, field, key
from steptrace.documents.subject import TableSubject, subject


@described(
    """What this rank sends to one rank of a process group in all-to-alls whose parts PyTorch describes.

    In a mixture of experts these are the tokens for that rank's experts. Every rank waits for the one that gets most.
    """
)
class ExpertLoad(Row, frozen=True):
    group: Annotated[str | None, key("Process group", "Name of the process group.")]
    place: Annotated[int, key("To rank of the group", "Place of the receiving rank in the process group.")]
    calls: Annotated[int, field("All-to-alls whose parts are known.", kind="total")]
    elements: Annotated[int, column("Elements sent", "Elements sent to it.", kind="total")]
    over_mean: Annotated[
        float, column("Over the mean", "These elements over the mean of all ranks of the group.", kind="mean")
    ]


SUBJECT: Final = TableSubject(
    "expert_loads",
    ExpertLoad,
    subject("Balance of all-to-alls", None, "needs_gpu", "compared", after="graph_annotations"),
)
