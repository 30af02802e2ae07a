"""Where the host spends time inside a step while no operator runs: in the program's own Python, or waiting."""

from typing import Annotated, Final

from steptrace.documents.base import Row, column, described, field, key, place_key
from steptrace.documents.subject import TableSubject, subject
from steptrace.format import duration

#: Shorter stretches are the Python between two operators of the same code. The limit is ours.
LEAST_NS: Final = 50_000


@described(
    """The stretches of steps, at one line, in which no operator runs on any thread that trains.

    A trace with Python frames knows the function that runs in the middle of a stretch. The line is that of the operator
    that ends the stretch if this function calls it; otherwise it is the line of the function's def.
    """
)
class HostStretch(Row, frozen=True):
    file: Annotated[str | None, place_key("Line", "File of the line.")]
    line: Annotated[int | None, key("", "Its number.", local=True)]
    function: Annotated[str | None, key("", "Function that the line stands in.")]
    op: Annotated[str | None, key("Ended by", "Operator that ends the stretches; none at the end of a step.")]
    label: Annotated[str | None, key("Label", "Innermost label around the middle of a stretch.")]
    code: Annotated[str | None, field("Text of the line.", kind="first")]
    count: Annotated[int, column("Stretches", f"Stretches of at least {duration(LEAST_NS)}.", kind="total")]
    longest_ns: Annotated[int, column("Longest", "Length of the longest stretch.", kind="max")]
    host_ns: Annotated[int, column("Host time", "Length of all stretches together.", kind="total")]
    loader_ns: Annotated[
        int, column("Waiting for data", "The part of that time in a data loader's `__next__`.", kind="total")
    ]
    calls_ns: Annotated[
        int,
        column("In GPU calls", "The part of that time in calls into the GPU's runtime, such as a sync.", kind="total"),
    ]


SUBJECT: Final = TableSubject(
    "host_stretches",
    HostStretch,
    subject(
        "Host stretches without an operator", "no_steps_with_operators", "folded", "compared", after="critical_path"
    ),
)
