"""What is said of syncs: where the host waits for the GPU, for how long, and what removing them saves at most."""

from typing import Annotated

from steptrace.documents.base import Document, field
from steptrace.documents.column import column, key


class Place(Document, frozen=True):
    """A place in the program."""

    file: Annotated[str | None, key("Line", "File of the first frame that is neither PyTorch's nor steptrace's.")]
    line: Annotated[int | None, key("", "Line in it; of backward work that of the forward operator.", local=True)]
    function: Annotated[str | None, key("", "Function that the line stands in.")]
    op: Annotated[str | None, key("Operator", "Innermost operator.")]
    label: Annotated[str | None, key("Label", "Innermost `record_function` label.")]
    phase: Annotated[str | None, key("Phase", "Part of the step.")]
    code: Annotated[str | None, field("Text of the line.", runs="none")]


class SyncSite(Place, frozen=True):
    """The counted syncs of one kind at one place.

    A sync is a host operation after which the host goes on only once queued GPU work is complete.
    """

    kind: Annotated[str, key("Kind", "The call, or `d2h_copy`, `h2d_copy`.")]
    count: Annotated[int, column("Syncs", "Syncs in all steps.", total=True)]
    blocked_ns: Annotated[
        int,
        column(
            "Host blocked, in all",
            "Time that the host spends inside the waiting calls; the GPU may be busy meanwhile.",
            "ns",
            total=True,
        ),
    ]
    exposed_idle_ns: Annotated[
        int | None,
        column(
            "Exposed idle, in all",
            "GPU idle time from the start of a sync to the first GPU work launched after it. A long block with none "
            "of it costs nothing.",
            "ns",
            total=True,
        ),
    ]
    count_per_step: Annotated[float | None, column("Per step", "Syncs per step.")]
    blocked_ns_per_step: Annotated[
        float | None,
        column(
            "Host blocked",
            "Time per step that the host spends inside the waiting calls; the GPU may be busy meanwhile.",
            "ns",
        ),
    ]
    exposed_idle_ns_per_step: Annotated[
        float | None,
        column(
            "Exposed GPU idle",
            "GPU idle time per step from the start of a sync to the first GPU work launched after it. A long block "
            "with none of it costs nothing.",
            "ns",
        ),
    ]
    ceiling_ns: Annotated[
        int | None,
        column(
            "Saves at most, in all",
            "Upper bound of what all steps save without these syncs: the time the host was blocked in them, and not "
            "more than the busiest stream was idle from their start until a later wait by which all work launched "
            "was done.",
            "ns",
        ),
    ]
    ceiling_ns_per_step: Annotated[
        float | None,
        column(
            "Saves at most",
            "Upper bound of what a step saves without these syncs: the time the host was blocked in them, and not more "
            "than the busiest stream was idle from their start until a later wait by which all work launched was done.",
            "ns",
        ),
    ]


class Syncs(Document, frozen=True):
    """Host synchronisations of a trace."""

    count: Annotated[int, column("Syncs", "Counted ones: on training threads, in steps.", total=True)]
    per_step: Annotated[
        float | None, column("Syncs per step", "Mean per step; not measured where nothing could have been seen.")
    ]
    by_step: Annotated[tuple[int, ...] | None, field("Each step's count.", runs="none")]
    blocked_ns: Annotated[
        int, column("Host blocked, in all", "Time the host was blocked in all steps.", "ns", total=True)
    ]
    exposed_idle_ns: Annotated[
        int | None,
        column("Exposed GPU idle, in all", "GPU idle time exposed in all steps, each instant once.", "ns", total=True),
    ]
    caused_idle_ns: Annotated[
        int | None,
        column(
            "Caused by syncs, in all", "Of the exposed idle, what lies in gaps whose cause is a sync.", "ns", total=True
        ),
    ]
    ceiling_ns: Annotated[
        int | None, column("Saves at most, in all", "Upper bound of what all steps save without any of them.", "ns")
    ]
    by_kind: Annotated[dict[str, int], field("Counts by kind.")]
    outside_steps: Annotated[
        int, column("Outside the steps", "Not counted: outside the steps, such as the profiler's own at its end.")
    ]
    other_threads: Annotated[int, field("Not counted: on threads without training work.")]
    sites: Annotated[tuple[SyncSite, ...], field("By place, the most blocking first.")]
