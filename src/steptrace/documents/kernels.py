"""Figures of kernels: their times, number formats and recurring sequences."""

from typing import Annotated

import msgspec

from steptrace.documents.base import Document, Row, column, described, field, key
from steptrace.documents.overview import PartTimes


@described(
    """The activities of one GPU of one name. Lengths are added over streams: work side by side counts on each.

    Those left over from steps before the recorded ones are in the table `kernel_names` alone.
    """
)
class KernelName(Row, frozen=True):
    name: Annotated[str, key("", "Name as recorded.")]
    short_name: Annotated[
        str, column("Kernel", "Short name, with the parts that distinguish it from the other names in the table.")
    ]
    class_: Annotated[str, key("Class", "`compute`, `comm` (collectives) or `memory` (memcpy and memset).")] = (
        msgspec.field(name="class")
    )
    count: Annotated[int, column("Calls", "Activities.", kind="total", plain=True)]
    sum_ns: Annotated[int, column("Sum", "Sum of their lengths.", kind="total")]
    mean_ns: Annotated[float, column("Mean", "Mean length.", kind="mean", plain=True)]
    median_ns: Annotated[float, field("Median length.", kind="mean")]
    min_ns: Annotated[int, field("Shortest.", kind="min")]
    max_ns: Annotated[int, column("Longest", "Longest.", kind="max", plain=True)]
    std_ns: Annotated[float | None, field("Standard deviation of the sample; null for one activity.", kind="mean")]
    share: Annotated[
        float,
        column(
            "Share of GPU time", "Of all activities' summed lengths; concurrent ones each count.", "share", kind="share"
        ),
    ]


@described("How long exactly this set of classes ran on a GPU at once; the rows add up to its busy time exactly.")
class KernelType(Row, frozen=True):
    classes: Annotated[str, key("At once", "The classes, joined by ` + `: `compute`, `comm + memory`, and so on.")]
    ns: Annotated[int, column("Time", "Time in which these ran and no others, over the whole trace.", kind="sum")]
    busy_share: Annotated[float, column("Share of busy time", "Of the GPU's busy time.", "share", kind="share")]


@described(
    """The compute kernels of one GPU of one name: the number format of their arithmetic and whether it runs on tensor
    cores. Lengths are added over streams.
    """
)
class KernelFormat(Document, frozen=True):
    name: Annotated[str, key("", "Name as recorded.")]
    short_name: Annotated[
        str, column("Kernel", "Short name, with the parts that distinguish it from the other names in the table.")
    ]
    bits: Annotated[
        str, column("Format", "`bits8` (and narrower), `bits16`, `bits32`, `bits64`, `integer` or `unknown`.")
    ]
    by: Annotated[
        str | None, column("Source", "Where that comes from: the kernel's `name` or its operator's input `types`.")
    ]
    tensor_core: Annotated[str, column("Tensor cores", "Whether it runs on tensor cores: `yes`, `no` or `unknown`.")]
    eligible: Annotated[bool, field("Whether its arithmetic is such as tensor cores do.")]
    tf32: Annotated[bool, column("TF32", "Whether its products are in TF32.")]
    count: Annotated[int, column("Calls", "Kernels.", kind="sum", plain=True)]
    ns: Annotated[int, column("Time", "Sum of their lengths.", kind="total")]


class Precision(Document, frozen=True):
    """The compute kernels of the analysed GPU by number format, in summed kernel time."""

    kernel_ns: Annotated[
        PartTimes,
        column(
            "Kernel time by number format",
            "Shares of compute kernels' time by the narrowest floating-point format in the kernel's name or, without "
            "one there, in its operator's inputs. TF32 is 32-bit.",
            kind="sum",
        ),
    ]
    tf32_ns: Annotated[int, field("Of the 32-bit time, in TF32 products.", kind="sum")]
    tensor_core_ns: Annotated[
        int,
        column(
            "Matrix products on tensor cores",
            "Of the time of matrix products, convolutions and attention: by name on tensor cores.",
            kind="sum",
        ),
    ]
    tensor_core_eligible_ns: Annotated[int, field("Matrix work that tensor cores could do.", kind="sum")]
    tensor_core_unknown_ns: Annotated[int, field("Of that, no name tells.", kind="sum")]
    kernels: Annotated[tuple[KernelFormat, ...], field("The eligible kernels with the most time.", kind="first")] = ()

    @property
    def shares(self) -> dict[str, float]:
        """By format, as shares of the time of all compute kernels; empty without any."""
        total = sum(self.kernel_ns.values())
        return {name: ns / total for name, ns in self.kernel_ns.items()} if total else {}

    @property
    def tf32_share(self) -> float:
        """The time of TF32 products as a share of the time of all compute kernels."""
        return self.tf32_ns / (sum(self.kernel_ns.values()) or 1)

    @property
    def tensor_core_share(self) -> float | None:
        """The share of the matrix work that runs on tensor cores; None without such work."""
        return self.tensor_core_ns / self.tensor_core_eligible_ns if self.tensor_core_eligible_ns else None

    @property
    def tensor_core_unknown_share(self) -> float | None:
        """The share of the matrix work whose kernels' names do not say where it runs; None without such work."""
        return self.tensor_core_unknown_ns / self.tensor_core_eligible_ns if self.tensor_core_eligible_ns else None


class SequenceEntry(Document, frozen=True):
    """Neighbouring activities of one name in a sequence."""

    name: Annotated[str, field("Short name.")]
    times: Annotated[int, field("How often one after the other.", kind="first")]

    def __str__(self) -> str:
        return self.name if self.times == 1 else f"{self.name} ×{self.times}"


@described(
    """The GPU activities that one call of an operator or label launched, in the order of their start.

    Calls with the same sequence are counted together; of callers of the same work the outermost stands for all.
    """
)
class Sequence(Document, frozen=True):
    kind: Annotated[str, key("Under", "`op` or `label`.")]
    name: Annotated[str, key("Name", "Operator or label.")]
    length: Annotated[int, column("Length", "Activities in the sequence.", kind="first")]
    count: Annotated[int, column("Times", "Calls that launched exactly this sequence.", kind="total")]
    kernel_ns: Annotated[int, column("GPU time", "Lengths of the activities over all calls.", kind="total")]
    span_ns: Annotated[
        int,
        column(
            "First to last",
            "From the first start to the last end, over all calls. The excess over the GPU time is the most that a "
            "CUDA graph or fusing can save.",
            kind="total",
        ),
    ]
    host_ns: Annotated[int, column("Host time", "Lengths of the calls on the host.", kind="total")]
    kernels: Annotated[tuple[SequenceEntry, ...], column("Activities in order", "The activities.", plain=True)]
    left_out: Annotated[int, field("Entries beyond the first that are listed.", kind="sum")]
