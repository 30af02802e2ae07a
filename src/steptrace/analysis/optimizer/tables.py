"""The table of what optimizers do, as their labels in a trace tell."""

from steptrace.documents.rows import OptimizerCall, columns_of
from steptrace.schema.table import Table

OPTIMIZER_CALLS = Table(
    name="optimizer_calls",
    doc="The calls of one method of one optimizer, by the label that PyTorch puts around each. Only operators called "
    "directly count, not those that they call.",
    columns=columns_of(OptimizerCall),
    key=("label",),
)
