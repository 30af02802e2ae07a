"""Where the program's operators are placed: on the GPU, on the host, or in the data loader."""

from typing import Annotated, Final

from steptrace.documents.base import Row, column, described, key
from steptrace.documents.subject import TableSubject, subject
from steptrace.format import duration

#: Shorter operators of the host compute a few numbers, as every program does. Ours.
LONG_NS: Final = 50_000


@described(
    """The operators of the steps that are placed on one side, those inside another operator left out.

    An operator is placed on the GPU if it, or an operator inside it, launches GPU work, copies or waits for the GPU.
    Any other one runs on the host, or nowhere: by its name it only makes a view or allocates. Operators of the data
    loader, in the process that trains, stand apart.
    """
)
class Placement(Row, frozen=True):
    placed: Annotated[
        str, key("Placed on", "`gpu`, `host`, `loader` (on the host, in the loader), `none` (views and allocations).")
    ]
    count: Annotated[int, column("Operators", "How many.", kind="total", plain=True)]
    host_ns: Annotated[int, column("Host time", "Their time on the host.", kind="total")]
    device_ns: Annotated[
        int | None, column("GPU time", "Lengths of the GPU work that they launch; none on the host.", kind="total")
    ]
    long_ns: Annotated[
        int,
        column(f"Of at least {duration(LONG_NS)}", "Host time of those that take at least that long.", kind="total"),
    ]
    most: Annotated[str, column("Most time", "The operator with most host time of these.")]
    most_ns: Annotated[int, column("Its host time", "Host time of all calls of that operator.", kind="total")]


SUBJECT: Final = TableSubject(
    "placement",
    Placement,
    subject(
        "Operators on GPU and host",
        "no_operators_labels_or_gpu_work",
        "needs_gpu",
        "folded",
        "compared",
        "follows_launches",
        after="host_stretches",
    ),
)
