"""The time of callbacks around a step: those of Lightning, transformers, Keras, fastai and similar loops."""

from typing import Annotated, Final

from steptrace.documents.base import Row, column, described, key, place_key
from steptrace.documents.subject import TableSubject, subject


@described(
    """The calls of one callback that a training loop calls before or after a batch or a step.

    It is known by its name, such as `on_train_batch_end` or `on_step_end`: that of a Python function in a trace with
    stacks, otherwise that of a label. What a callback inside another one takes counts for the inner one alone.
    """
)
class Callback(Row, frozen=True):
    file: Annotated[str | None, place_key("Callback", "File of the function; none of a label.")]
    line: Annotated[int | None, key("", "Line of its def.", local=True)]
    function: Annotated[str, key("", "Name of the function, or the label.")]
    count: Annotated[int, column("Calls", "How many.", kind="total", plain=True)]
    host_ns: Annotated[int, column("Host time", "Time of the training thread in it.", kind="total")]
    longest_ns: Annotated[int, column("Longest", "The longest call.", kind="max", plain=True)]
    idle_ns: Annotated[
        int | None, column("GPU idle meanwhile", "The part of that time without any GPU work.", kind="total")
    ]


#: A trace without callbacks lacks nothing, and its page says nothing of them.
SUBJECT: Final = TableSubject(
    "callbacks", Callback, subject("Callbacks around a step", None, "folded", "compared", after="placement")
)
