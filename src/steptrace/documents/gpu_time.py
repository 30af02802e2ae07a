"""Where the time of GPUs and of steps went."""

from typing import Annotated

from steptrace.documents.base import Document, field
from steptrace.documents.column import column, key


class GpuTime(Document, frozen=True):
    """Where a GPU's time went, over the whole trace; compute, exposed parts and idle add up to the span exactly."""

    activities: Annotated[int, column("GPU activities", "Kernels, copies and sets.")]
    span_ns: Annotated[int | None, column("GPU span", "First start to last end of GPU work.")]
    busy_ns: Annotated[int | None, column("Busy", "Union of all GPU work.")]
    idle_ns: Annotated[int | None, column("Idle", "The span without any GPU work.")]
    compute_ns: Annotated[int | None, column("Compute", "Union of compute kernels.")]
    comm_ns: Annotated[int | None, column("Communication", "Union of collectives' kernels.")]
    memory_ns: Annotated[int | None, column("Memory", "Union of copies and sets.")]
    exposed_comm_ns: Annotated[int | None, column("Exposed communication", "Communication that no compute hides.")]
    exposed_memory_ns: Annotated[
        int | None, column("Exposed copies and memsets", "Copies and sets that no kernel hides.")
    ]
    comm_compute_overlap_ns: Annotated[int | None, column("Communication and compute", "Time with both at once.")]
    overlap_pct: Annotated[
        float | None, column("Communication hidden", "Share of communication that runs while compute does.")
    ]


class StepTime(Document, frozen=True):
    """One step; without a GPU its GPU figures are not measured."""

    index: Annotated[int, key("ProfilerStep", "The profiler's number of the step.")]
    start_ns: Annotated[int, field("Start.")]
    dur_ns: Annotated[
        int,
        column(
            "Length",
            "Length, up to the end of the last work launched in it: where the host runs ahead, steps overlap.",
        ),
    ]
    host_dur_ns: Annotated[int, column("On the host", "Length on the host.")]
    busy_ns: Annotated[int | None, column("Busy", "Union of all GPU work in it.")]
    compute_ns: Annotated[int | None, column("Compute", "Union of compute kernels in it.")]
    exposed_comm_ns: Annotated[int | None, column("Exposed communication", "Communication that no compute hides.")]
    exposed_memory_ns: Annotated[
        int | None, column("Exposed copies and memsets", "Copies and sets that no kernel hides.")
    ]
    idle_ns: Annotated[int | None, column("Idle", "Its length without any GPU work.")]
