"""The tables of the input pipeline."""

from steptrace.documents.rows import InputWaitOfStep, columns_of
from steptrace.schema.table import Table

INPUT_WAITS = Table(
    name="input_waits",
    doc="How long training threads waited for data in one step, or in the whole of a trace without steps.",
    columns=columns_of(InputWaitOfStep),
    key=("step",),
)
