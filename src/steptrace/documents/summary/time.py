"""Of a trace: where the time of steps and GPUs went, why GPUs were idle, and in which number formats they worked."""

from typing import Annotated, Literal

from steptrace.documents.base import Document, field
from steptrace.documents.rows import IdleEnding, IdleGap, InputWaitOfStep, KernelFormat, StreamIdle, TopOperator

#: Of a whole that is divided: the part's name to its time in ns.
Parts = dict[str, int]


class GpuTime(Document, frozen=True):
    """Where a GPU's time went, over the whole trace; compute, exposed parts and idle add up to the span exactly."""

    activities: Annotated[int, field("Kernels, copies and sets.")]
    span_ns: Annotated[int | None, field("First start to last end of GPU work.", "ns")]
    busy_ns: Annotated[int | None, field("Union of all GPU work.", "ns")]
    idle_ns: Annotated[int | None, field("The span without `busy_ns`.", "ns")]
    compute_ns: Annotated[int | None, field("Union of compute kernels.", "ns")]
    comm_ns: Annotated[int | None, field("Union of collectives' kernels.", "ns")]
    memory_ns: Annotated[int | None, field("Union of copies and sets.", "ns")]
    exposed_comm_ns: Annotated[int | None, field("Communication that no compute hides.", "ns")]
    exposed_memory_ns: Annotated[int | None, field("Copies and sets that no kernel hides.", "ns")]
    comm_compute_overlap_ns: Annotated[int | None, field("Communication and compute at once.", "ns")]
    overlap_pct: Annotated[float | None, field("Overlap as a share of communication.", "%")]


class DeviceTime(GpuTime, frozen=True):
    """The same of one of a trace's GPUs."""

    device: Annotated[int, field("GPU.")]


class StepTime(Document, frozen=True):
    """One step; GPU figures are null without a GPU."""

    index: Annotated[int, field("The N of `ProfilerStep#N`.")]
    start_ns: Annotated[int, field("Start.", "ns")]
    dur_ns: Annotated[int, field("Length, up to the end of the last work launched in it.", "ns")]
    host_dur_ns: Annotated[int, field("Length on the host.", "ns")]
    busy_ns: Annotated[int | None, field("Union of all GPU work in it.", "ns")]
    compute_ns: Annotated[int | None, field("Union of compute kernels in it.", "ns")]
    exposed_comm_ns: Annotated[int | None, field("Communication that no compute hides.", "ns")]
    exposed_memory_ns: Annotated[int | None, field("Copies and sets that no kernel hides.", "ns")]
    idle_ns: Annotated[int | None, field("Its length without `busy_ns`.", "ns")]


class Section(Document, frozen=True):
    """One label of the program within steps, as medians over the steps."""

    label: Annotated[str, field("The `record_function` label.")]
    count_per_step: Annotated[float, field("Sections of the label.")]
    host_ns_per_step: Annotated[float, field("Host time in them.", "ns")]
    device_ns_per_step: Annotated[float | None, field("GPU time of what was launched in them.", "ns")]


class Idle(Document, frozen=True):
    """Why the GPU, or a stream of it, had nothing to do."""

    by_stream: Annotated[tuple[StreamIdle, ...], field("Per stream, as Holistic Trace Analysis sorts it.")]
    by_cause: Annotated[Parts | None, field("Of the analysed GPU, by cause.", "ns")]
    gaps: Annotated[int | None, field("Number of gaps.")]
    ended_by: Annotated[tuple[IdleEnding, ...], field("What ended the gaps, most idle time first.")]
    longest: Annotated[tuple[IdleGap, ...], field("The longest gaps.")]


class HostCall(Document, frozen=True):
    """Calls of one name into the GPU's runtime within a gap."""

    name: Annotated[str, field("Name of the call.")]
    count: Annotated[int, field("Calls.")]
    ns: Annotated[int, field("Their time within the gap.", "ns")]


class HostGap(Document, frozen=True):
    """One gap in the GPU's work that only the host explains."""

    where: Annotated[Literal["before", "between", "after"], field("Before the GPU's first work, between, after it.")]
    ts: Annotated[int, field("Start.", "ns")]
    dur: Annotated[int, field("Length.", "ns")]
    op: Annotated[str | None, field("Operator whose work ended it.")]
    label: Annotated[str | None, field("Label whose work ended it.")]
    calls: Annotated[tuple[HostCall, ...], field("What the host called meanwhile.")]


class HostGaps(Document, frozen=True):
    """The gaps that only the host explains, and the long calls in them."""

    gap_ns: Annotated[int, field("All such gaps together.", "ns")]
    long_call_ns: Annotated[int, field("Of these, in long calls into the GPU's runtime.", "ns")]
    gaps: Annotated[tuple[HostGap, ...], field("The longest.")]
    call_ns: Annotated[
        int | None, field("Of `gap_ns`, with a training thread in any call into the GPU's runtime.", "ns")
    ] = None
    op_ns: Annotated[int | None, field("Of the rest, with one in an operator.", "ns")] = None


class Input(Document, frozen=True):
    """Waiting for data: the steps together, and each."""

    source: Annotated[Literal["loader", "section"] | None, field("What tells of waits: a DataLoader, or our label.")]
    steps: Annotated[int | None, field("Steps; null for a trace without.")]
    window_ns: Annotated[int, field("Time of the steps, or of the trace.", "ns")]
    waits: Annotated[int | None, field("Waits.")]
    wait_ns: Annotated[int | None, field("Time in them.", "ns")]
    gpu_idle_wait_ns: Annotated[int | None, field("Of that, with the GPU idle.", "ns")]
    counted_ns: Annotated[int | None, field("What counts against the steps.", "ns")]
    share: Annotated[float | None, field("`counted_ns` as a share of the window.")]
    verdict: Annotated[Literal["none", "moderate", "high"] | None, field("How much that is.")]
    threshold_moderate: Annotated[float, field("From this share on moderate.")]
    threshold_high: Annotated[float, field("From this share on high.")]
    by_step: Annotated[tuple[InputWaitOfStep, ...], field("Each step.")]


class StepParts(Document, frozen=True):
    """The steps' window in parts that exclude each other and add up to it."""

    kind: Annotated[Literal["gpu", "host"], field("Whether the parts are the GPU's, or the loop's sections.")]
    steps: Annotated[int, field("Steps.")]
    window_ns: Annotated[int, field("Length of the window.", "ns")]
    parts_ns: Annotated[Parts, field("Each part.", "ns")]


class Overview(Document, frozen=True):
    """How long a step takes, where that time goes, and what takes it; the parts add up to the window."""

    kind: Annotated[Literal["gpu", "host"], field("Whether the parts are the GPU's, or the loop's sections.")]
    steps: Annotated[int, field("Steps; 0: the GPU's span is the window.")]
    window_ns: Annotated[int, field("Length of the window.", "ns")]
    step_ns: Annotated[float | None, field("Mean time of a step.", "ns")]
    parts_ns: Annotated[Parts, field("Each part.", "ns")]
    device_compute_share: Annotated[float | None, field("Share of the window in which the GPU computed.")]
    operators: Annotated[tuple[TopOperator, ...], field("The operators with the most time of their own.")] = ()


class Placement(Document, frozen=True):
    """Operators of the steps by where they ran."""

    ops_total: Annotated[int, field("`ops_device` + `ops_host` + `ops_view`.")]
    ops_device: Annotated[int, field("Launched GPU work themselves.")]
    ops_host: Annotated[int, field("Worked on the host, by at least half of their time.")]
    ops_view: Annotated[int, field("Views and allocations.")]
    device_ns: Annotated[int | None, field("Summed length of GPU work that operators launched.", "ns")]
    host_ns: Annotated[int, field("Host time of operators that are neither, without what they called.", "ns")]
    view_ns: Annotated[int, field("Host time of views.", "ns")]


class Precision(Document, frozen=True):
    """The compute kernels of the analysed GPU by number format, in summed kernel time."""

    kernel_ns: Annotated[Parts, field("By format: adds up to the time of all compute kernels.", "ns")]
    from_types_ns: Annotated[int, field("Known from the operator's input types alone.", "ns")]
    tf32_ns: Annotated[int, field("Of the 32-bit time, in TF32 products.", "ns")]
    tensor_core_ns: Annotated[int, field("Matrix work on tensor cores.", "ns")]
    tensor_core_eligible_ns: Annotated[int, field("Matrix work that tensor cores could do.", "ns")]
    tensor_core_no_ns: Annotated[int, field("Of that, not on tensor cores.", "ns")]
    tensor_core_unknown_ns: Annotated[int, field("Of that, no name tells.", "ns")]
    eligible_16_ns: Annotated[int, field("Of the eligible, in 16 bits or fewer.", "ns")]
    kernels: Annotated[tuple[KernelFormat, ...], field("The eligible kernels with the most time.")] = ()
