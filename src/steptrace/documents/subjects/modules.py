"""GPU time, or without a GPU host time, of the program's modules and their lines, as a tree."""

from typing import Annotated, Final

from steptrace.documents.base import Row, column, described, field, key
from steptrace.documents.subject import TableSubject, subject

#: How many rows summary.json holds: of all that there are, those with the most time.
MOST_ROWS: Final = 150


@described(
    """The calls of modules of one class at one place in the model, forward and backward; or a line within them.

    Modules of one class that the same module calls are one row: the twelve layers of an encoder. GPU work of the
    backward pass counts at the module whose forward pass it belongs to.
    """
)
class ModuleTime(Row, frozen=True):
    path: Annotated[
        str, key("Module", "The classes of the modules from the outermost to this one, `Encoder / Layer / Linear`.")
    ]
    kind: Annotated[
        str, field("`module`, `line`, or `rest`: GPU work that has neither a module nor a line.", kind="first")
    ]
    name: Annotated[str, field("The class, or the line as `file.py:12`.", kind="first")]
    parent: Annotated[str | None, field("The path of the row that this is a part of.", kind="first")]
    modules: Annotated[
        int | None, column("Modules", "How many modules of the class there are; not known of lines.", kind="max")
    ]
    calls: Annotated[int | None, column("Calls", "Calls of their forward passes.", kind="total")]
    host_ns: Annotated[
        int | None, column("Host, forward", "Time of these calls on the host, with all that they call.", kind="total")
    ]
    device_ns: Annotated[
        int | None,
        column("GPU time", "GPU work of the module and of the modules inside it, summed over streams.", kind="total"),
    ]
    backward_ns: Annotated[int | None, column("Of it backward", "Of that, in the backward pass.", kind="total")]
    largest: Annotated[
        str | None, column("Longest one", "The module among several with the most time: its class and number.")
    ]
    largest_ns: Annotated[
        int | None, column("Its time", "Its GPU time, or without a GPU its time on the host.", kind="max")
    ]
    smallest_ns: Annotated[
        int | None, column("Shortest one's", "The same of the module with the least time.", kind="min")
    ]

    @property
    def time_ns(self) -> int:
        """The time that a picture shows: GPU time, or host time if no GPU was measured."""
        return self.device_ns if self.device_ns is not None else self.host_ns or 0


SUBJECT: Final = TableSubject(
    "modules",
    ModuleTime,
    subject("Where in the model", "no_module_frames", "of_one_trace", "compared", "not_on_study", after="program"),
)
