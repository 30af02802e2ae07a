"""The table of what optimizers do, as their labels in a trace tell."""

from steptrace.schema.table import Column, Table

OPTIMIZER_CALLS = Table(
    name="optimizer_calls",
    doc="The calls of one method of one optimizer, by the label that PyTorch puts around each. Only operators called "
    "directly count, not those that they call.",
    columns=(
        Column("label", "string", "`Optimizer.step#SGD.step`, `Optimizer.zero_grad#Adam.zero_grad`, ..."),
        Column("method", "string", "`step` or `zero_grad`."),
        Column("optimizer", "string", "Name of the optimizer's class."),
        Column("count", "int64", "Calls, those inside one of the same label left out."),
        Column("host_ns", "int64", "Host time in them, each instant of a thread once.", "ns"),
        Column("operators", "int64", "Operators called."),
        Column("foreach", "int64", "Of these, on many tensors at once (`_foreach_`)."),
        Column("fused", "int64", "Of these, a whole update in one (their name says fused)."),
        Column("zeroing", "int64", "Of these, setting to zero (`zero_`, `_foreach_zero_`)."),
        Column("most_common", "string", "The operator called most often.", nullable=True),
        Column("most_common_count", "int64", "How often."),
        Column("single_tensor", "int64", "Python frames `_single_tensor_...`; 0 too where no frames are recorded."),
        Column("kernels", "int64", "GPU activities launched; null without a GPU.", nullable=True),
        Column("device_ns", "int64", "Time the GPU was busy with these, each instant once.", "ns", nullable=True),
    ),
    key=("label",),
)
