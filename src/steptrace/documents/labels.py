"""Figures of labels that the program set, and calls of optimizers."""

from typing import Annotated

from steptrace.documents.base import Document, field
from steptrace.documents.column import column, key


class Label(Document, frozen=True):
    """All uses of one label, with the GPU's time that belongs to them."""

    label: Annotated[str, key("Label", "The label; steps (`ProfilerStep#N`) are none.")]
    count: Annotated[int, column("Count", "How many, those inside one of their own label included.", total=True)]
    host_ns: Annotated[int, column("Host time", "Host time in them, each instant of a thread once.", total=True)]
    host_self_ns: Annotated[int, column("Own host time", "Of that, outside other labels within them.", total=True)]
    kernels: Annotated[int | None, column("GPU activities", "Launched in them or in labels within.", total=True)]
    device_ns: Annotated[
        int | None, column("GPU time", "Time the GPU was busy with these, each instant once.", total=True)
    ]
    device_self_ns: Annotated[int | None, column("Own GPU time", "Of their work without labels within.", total=True)]


class OptimizerCall(Document, frozen=True):
    """The calls of one method of one optimizer, by the label that PyTorch puts around each.

    Only operators called directly count, not those that they call.
    """

    label: Annotated[str, key("Call", "`Optimizer.step#SGD.step`, `Optimizer.zero_grad#Adam.zero_grad`, ...")]
    method: Annotated[str, field("`step` or `zero_grad`.")]
    optimizer: Annotated[str, field("Name of the optimizer's class.")]
    count: Annotated[int, column("Calls", "Calls, those inside one of the same label left out.", total=True)]
    host_ns: Annotated[int, column("Host time", "Host time in them, each instant of a thread once.", total=True)]
    operators: Annotated[int, column("Operators", "Operators called.", total=True)]
    foreach: Annotated[int, column("On many tensors", "Of these, on many tensors at once (`_foreach_`).", total=True)]
    fused: Annotated[int, column("Fused", "Of these, a whole update in one (their name says fused).", total=True)]
    zeroing: Annotated[int, column("Zeroing", "Of these, setting to zero (`zero_`, `_foreach_zero_`).", total=True)]
    most_common: Annotated[str | None, column("Most called", "The operator called most often.")]
    most_common_count: Annotated[int, column("Calls of it", "How often that one is called.", total=True)]
    kernels: Annotated[int | None, column("GPU activities", "GPU activities launched.", total=True)]
    device_ns: Annotated[
        int | None, column("GPU time", "Time the GPU was busy with these, each instant once.", total=True)
    ]
