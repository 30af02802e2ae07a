"""Figures of labels that the program set."""

from typing import Annotated

from steptrace.documents.base import Row, column, described, key


@described("All uses of one label, with the GPU's time that belongs to them.")
class Label(Row, frozen=True):
    label: Annotated[str, key("Label", "The label; the marks of steps (`ProfilerStep#N`) do not count.")]
    count: Annotated[int, column("Count", "How many, those inside one of their own label included.", kind="total")]
    host_ns: Annotated[int, column("Host time", "Host time in them, each instant of a thread once.", kind="total")]
    host_self_ns: Annotated[int, column("Own host time", "Of that, outside other labels within them.", kind="total")]
    kernels: Annotated[int | None, column("GPU activities", "Launched in them or in labels within.", kind="total")]
    device_ns: Annotated[
        int | None, column("GPU time", "Time the GPU was busy with these, each instant once.", kind="total")
    ]
    device_self_ns: Annotated[int | None, column("Own GPU time", "Of their work without labels within.", kind="total")]
