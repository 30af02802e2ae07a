"""Figures of communication of one rank."""

from typing import Annotated, Literal

from steptrace.documents.base import Document, column, field, key


class CollectiveName(Document, frozen=True):
    """The collectives of one name and process group, waiting for other ranks included.

    The name is PyTorch's, or else what the kernel's name says; on a host PyTorch's label around it.
    """

    collective: Annotated[str, key("Collective", "`all_reduce`, ..., or the kernel's short name.")]
    group: Annotated[str | None, key("Process group", "Process group.")]
    count: Annotated[int, column("Calls", "How many.", total=True)]
    sum_ns: Annotated[int, column("Sum", "Summed length.", total=True)]
    median_ns: Annotated[float, column("Median", "Median length.")]
    max_ns: Annotated[int, column("Longest", "Longest.")]
    exposed_ns: Annotated[
        int | None,
        column(
            "Exposed",
            "Time without a compute kernel, on a host without an operator; concurrent ones each count theirs.",
            total=True,
        ),
    ]
    bytes: Annotated[int | None, column("Bytes", "Bytes, if the trace has them for all.", total=True)]
    hidden_pct: Annotated[float | None, column("Hidden", "Share of its own length under computation.")]


class Collectives(Document, frozen=True):
    """What a rank communicated."""

    count: Annotated[int, field("Collectives.")]
    by_name: Annotated[tuple[CollectiveName, ...], field("By name and group, the most exposed first.")]


class AllReduce(Document, frozen=True):
    """The all-reduces of a trace, of its steps where it has any; each instant once."""

    source: Annotated[Literal["gpu", "host"], field("Where they ran.")]
    count: Annotated[int, field("How many.")]
    bytes: Annotated[int | None, field("Bytes; null unless the trace has them for all.")]
    measured_ns: Annotated[int, field("Union of their spans.")]
    exposed_ns: Annotated[int | None, field("Of that, not hidden by computation.")]
    overlap: Annotated[float | None, field("Share that computation hid.")]
