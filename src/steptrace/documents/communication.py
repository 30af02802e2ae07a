"""Figures of communication of one rank."""

from typing import Annotated, Literal

from steptrace.documents.base import Document, Row, column, described, field, key


@described(
    """The collectives of one name and process group.

    The name is PyTorch's, or else what the kernel's name says; on a host PyTorch's label around it. A collective's time
    is waiting, until its last rank has begun it, and transfer, from then on. The two are told apart where the traces of
    all ranks of the group were read together; lengths include both.
    """
)
class CollectiveName(Row, frozen=True):
    collective: Annotated[str, key("Collective", "`all_reduce`, ..., or the kernel's short name.")]
    group: Annotated[str | None, key("Process group", "Process group.")]
    count: Annotated[int, column("Calls", "How many.", kind="total", plain=True)]
    sum_ns: Annotated[int, column("Sum", "Summed length.", kind="total", plain=True)]
    median_ns: Annotated[float, column("Median", "Median length.", kind="mean", plain=True)]
    max_ns: Annotated[int, column("Longest", "Longest.", kind="max", plain=True)]
    exposed_ns: Annotated[
        int | None,
        column(
            "Exposed",
            "Time without a compute kernel, on a host without an operator; concurrent ones each count theirs.",
            kind="total",
        ),
    ]
    bytes: Annotated[int | None, column("Bytes", "Bytes, if the trace has them for all.", kind="total")]
    hidden_pct: Annotated[float | None, column("Hidden", "Share of its own length under computation.", kind="share")]
    matched: Annotated[
        int | None,
        field(
            "How many of them the traces of all ranks of the group hold: only their waiting is known. Null for one "
            "rank's trace.",
            kind="sum",
        ),
    ] = None
    wait_ns: Annotated[
        int | None,
        column(
            "Waiting",
            "Of the summed length, before the last rank began the collective; null if ranks were not read.",
            kind="total",
        ),
    ] = None
    least_wait_ns: Annotated[
        int | None,
        field(
            "Where ranks were not read: of the summed length, before the last of those that were read began.",
            kind="sum",
        ),
    ] = None
    transfer_ns: Annotated[int | None, column("Transfer", "The rest of the summed length.", kind="total")] = None
    exposed_transfer_ns: Annotated[
        int | None, column("Exposed transfer", "The part of the exposed time that is not waiting.", kind="total")
    ] = None
    bus_bytes_per_s: Annotated[
        float | None,
        column(
            "Bus bandwidth, waiting included",
            "Bytes over the summed length, times the factor that nccl-tests uses to compare collectives: 2(n-1)/n "
            "for an all-reduce of n ranks, (n-1)/n for all-gather, reduce-scatter and all-to-all, else 1.",
            kind="rate",
        ),
    ] = None
    transfer_bus_bytes_per_s: Annotated[
        float | None, column("Bus bandwidth of the transfer", "The same bytes over the transfer alone.", kind="rate")
    ] = None


@described("What a rank communicated.")
class Collectives(Document, frozen=True):
    count: Annotated[int, field("Collectives.", kind="sum")]
    by_name: Annotated[tuple[CollectiveName, ...], field("By name and group, the most exposed first.")]

    @property
    def is_empty(self) -> bool:
        """Whether there is no collective."""
        return not self.count


ExpectedBy = Literal["given", "published", "nvlink", "pcie"]


class AllReduce(Document, frozen=True):
    """The all-reduces of a trace, of its steps where it has any; each instant once."""

    source: Annotated[Literal["gpu", "host"], field("Where they ran.")]
    count: Annotated[int, field("How many.", kind="sum")]
    bytes: Annotated[int | None, field("Bytes; null unless the trace has them for all.", kind="sum")]
    measured_ns: Annotated[int, field("Union of their spans.", kind="sum")]
    exposed_ns: Annotated[int | None, field("Of that, not hidden by computation.", kind="sum")]
    overlap: Annotated[float | None, field("Share that computation hid.", kind="share")]
    exposed_wait_ns: Annotated[
        int | None,
        field(
            "Of the exposed time, waiting for other ranks; null unless the traces of all ranks were read together.",
            kind="sum",
        ),
    ] = None
    expected_ns: Annotated[
        int | None,
        field(
            "What they should take one after another by their sizes, see `expected_by`; null where a size, the number "
            "of ranks or the link is not known.",
            kind="sum",
        ),
    ] = None
    expected_by: Annotated[
        ExpectedBy | None,
        field(
            "`given`: the bandwidth of `analyze --bandwidth`. `published`: NCCL's times on this GPU, on one machine. "
            "`nvlink`, `pcie`: such times of another GPU, by the ratio of their links' data sheets."
        ),
    ] = None
