"""Where the time of GPUs and of steps went."""

from typing import Annotated

from steptrace.documents.base import Document, field
from steptrace.documents.column import column, key


class GpuTime(Document, frozen=True):
    """Where a GPU's time went, over the whole trace; compute, exposed parts and idle add up to the span exactly."""

    activities: Annotated[int, column("GPU activities", "Kernels, copies and sets.")]
    span_ns: Annotated[int | None, column("GPU span", "First start to last end of GPU work.")]
    busy_ns: Annotated[int | None, column("Busy", "Union of all GPU work.")]
    idle_ns: Annotated[int | None, column("Idle", "The span without `busy_ns`.")]
    compute_ns: Annotated[int | None, column("Compute", "Union of compute kernels.")]
    comm_ns: Annotated[int | None, column("Communication", "Union of collectives' kernels.")]
    memory_ns: Annotated[int | None, column("Memory", "Union of copies and sets.")]
    exposed_comm_ns: Annotated[int | None, column("Exposed communication", "Communication that no compute hides.")]
    exposed_memory_ns: Annotated[
        int | None, column("Exposed copies and memsets", "Copies and sets that no kernel hides.")
    ]
    comm_compute_overlap_ns: Annotated[int | None, column("Communication hidden", "Communication and compute at once.")]
    overlap_pct: Annotated[float | None, column("Overlap", "Overlap as a share of communication.")]


class StepTime(Document, frozen=True):
    """One step; GPU figures are null without a GPU."""

    index: Annotated[int, key("ProfilerStep", "The profiler's number of the step.")]
    start_ns: Annotated[int, field("Start.")]
    dur_ns: Annotated[int, column("Length", "Length, up to the end of the last work launched in it.")]
    host_dur_ns: Annotated[int, column("On the host", "Length on the host.")]
    busy_ns: Annotated[int | None, column("Busy", "Union of all GPU work in it.")]
    compute_ns: Annotated[int | None, column("Compute", "Union of compute kernels in it.")]
    exposed_comm_ns: Annotated[int | None, column("Exposed communication", "Communication that no compute hides.")]
    exposed_memory_ns: Annotated[
        int | None, column("Exposed copies and memsets", "Copies and sets that no kernel hides.")
    ]
    idle_ns: Annotated[int | None, column("Idle", "Its length without `busy_ns`.")]


class TemporalRow(Document, frozen=True):
    """Where one GPU's time went in one step, or, in the row without a step, from its first to its last activity.

    Compute, the exposed parts and idle add up to the span exactly.
    """

    rank: Annotated[int | None, field("Rank of the trace, null if it does not say.")]
    device: Annotated[int, key("GPU", "GPU.", local=True)]
    step: Annotated[int | None, key("", "Row of `steps`; null for the whole trace.")]
    index: Annotated[int | None, key("ProfilerStep", "The profiler's number of the step; null for the whole trace.")]
    start_ns: Annotated[int, field("Start of the span.")]
    span_ns: Annotated[
        int, column("Span", "Length of the span: of a step, up to the end of the last work it launched.")
    ]
    busy_ns: Annotated[int, field("Time with any activity.")]
    compute_ns: Annotated[int, column("Compute", "Time with a compute kernel.")]
    comm_ns: Annotated[int, column("Communication", "Time with a collective's kernel, hidden or not.")]
    memory_ns: Annotated[int, field("Time with a memcpy or memset, hidden or not.")]
    exposed_comm_ns: Annotated[
        int, column("Exposed communication", "Time with a collective's kernel and no compute kernel.")
    ]
    exposed_memory_ns: Annotated[
        int, column("Exposed copies and memsets", "Time with a memcpy or memset and no kernel.")
    ]
    comm_compute_overlap_ns: Annotated[
        int, column("Communication hidden", "Time with a collective's and a compute kernel.")
    ]
    idle_ns: Annotated[int, column("Idle", "Time without any activity.")]
