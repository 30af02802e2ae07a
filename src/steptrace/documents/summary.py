"""summary.json: what one set of traces says, in numbers. Times are integer nanoseconds; sums and medians say so."""

from typing import Annotated, Literal

import msgspec

from steptrace.documents.base import Document, field
from steptrace.documents.finding import Finding
from steptrace.documents.rows import (
    AtPeak,
    Copy,
    IdleEnding,
    IdleGap,
    InputWaitOfStep,
    KernelFormat,
    KernelName,
    KernelType,
    Label,
    LaunchCall,
    OptimizerCall,
    QualityCheck,
    Queue,
    RankKernel,
    RankWait,
    StreamIdle,
    TemporalRow,
    TopOperator,
)
from steptrace.documents.step_figures import StepFigures

#: Of a whole that is divided: the part's name to its time in ns.
Parts = dict[str, int]


class Quality(Document, frozen=True):
    """What a reader should know before trusting a trace's figures."""

    steps: Annotated[int, field("Steps counted.")]
    launch_coverage: Annotated[float | None, field("Share of GPU work with a known launch; null without GPU work.")]
    warnings: Annotated[tuple[str, ...], field("The reader's notes and the checks that failed.")]
    checks: Annotated[tuple[QualityCheck, ...], field("Every check.")]


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


class SyncSite(Document, frozen=True):
    """The counted synchronisations of one kind at one place."""

    file: Annotated[str | None, field("File of the first frame that is neither PyTorch's nor steptrace's.")]
    line: Annotated[int | None, field("Line in it; of backward work that of the forward operator.")]
    function: Annotated[str | None, field("Function that the line stands in.")]
    op: Annotated[str | None, field("Innermost operator.")]
    label: Annotated[str | None, field("Innermost `record_function` label.")]
    phase: Annotated[str | None, field("Part of the step.")]
    code: Annotated[str | None, field("Text of the line.")]
    kind: Annotated[str, field("The call, or `d2h_copy`, `h2d_copy`.")]
    count: Annotated[int, field("Synchronisations.")]
    blocked_ns: Annotated[int, field("Time the host was blocked in them.", "ns")]
    exposed_idle_ns: Annotated[int | None, field("GPU idle time that they expose.", "ns")]
    count_per_step: Annotated[float | None, field("Per step.")]
    blocked_ns_per_step: Annotated[float | None, field("Per step.", "ns")]
    exposed_idle_ns_per_step: Annotated[float | None, field("Per step.", "ns")]
    ceiling_ns: Annotated[int | None, field("What all steps could be shorter by at most, were they gone.", "ns")]
    saved_ns: Annotated[int | None, field("What the dependency graph saves without them, over all steps.", "ns")]


class Syncs(Document, frozen=True):
    """Host synchronisations of a trace."""

    count: Annotated[int, field("Counted ones: on training threads, in steps.")]
    per_step: Annotated[float | None, field("Mean per step; null where nothing could have been seen.")]
    by_step: Annotated[tuple[int, ...] | None, field("Each step's count.")]
    blocked_ns: Annotated[int, field("Time the host was blocked.", "ns")]
    exposed_idle_ns: Annotated[int | None, field("GPU idle time exposed.", "ns")]
    caused_idle_ns: Annotated[int | None, field("Of that, in gaps whose cause is a sync.", "ns")]
    by_kind: Annotated[dict[str, int], field("Counts by kind.")]
    outside_steps: Annotated[int, field("Not counted: outside the steps.")]
    other_threads: Annotated[int, field("Not counted: on threads without training work.")]
    sites: Annotated[tuple[SyncSite, ...], field("By place, the most blocking first.")]


class StepParts(Document, frozen=True):
    """The steps' window in parts that exclude each other and add up to it."""

    kind: Annotated[Literal["gpu", "host"], field("Whether the parts are the GPU's, or the loop's sections.")]
    steps: Annotated[int, field("Steps.")]
    window_ns: Annotated[int, field("Length of the window.", "ns")]
    parts_ns: Annotated[Parts, field("Each part.", "ns")]


class WhatIf(Document, frozen=True):
    """How well the dependency model explains the trace, and what is saved without any counted sync."""

    steps: Annotated[int, field("Steps; 0: the whole trace.")]
    measured_ns: Annotated[int, field("Measured time of all steps.", "ns")]
    replayed_ns: Annotated[int, field("The model's, with nothing removed.", "ns")]
    error: Annotated[
        float,
        field("Modelled over measured time, less 1: activities that overlap on one stream run one after the other."),
    ]
    unexplained_ns: Annotated[int, field("Waiting of the GPU taken over without a known cause.", "ns")]
    reason: Annotated[str | None, field("Why nothing is predicted; null if the model fits.")]
    all_saved_ns: Annotated[int | None, field("Saved over all steps without any counted sync.", "ns")]
    all_ceiling_ns: Annotated[int, field("What that could be at most.", "ns")]


class Distribution(Document, frozen=True):
    """One time of all launches."""

    sum: Annotated[int, field("Sum.", "ns")]
    median: Annotated[float, field("Median.", "ns")]
    p95: Annotated[float, field("95th percentile.", "ns")]
    max: Annotated[int, field("Largest.", "ns")]


class LaunchOperator(Document, frozen=True):
    """The launches of one operator."""

    op: Annotated[str, field("Operator.")]
    count: Annotated[int, field("Launches.")]
    host_ns: Annotated[int, field("Summed length of the calls.", "ns")]
    device_ns: Annotated[int, field("Summed time of their work.", "ns")]
    delay_ns: Annotated[int, field("Summed delay.", "ns")]
    queueing_ns: Annotated[int, field("Summed queueing.", "ns")]
    dependency_ns: Annotated[int, field("Summed waiting for events.", "ns")]
    latency_ns: Annotated[int, field("Summed launch latency.", "ns")]
    short_kernels: Annotated[int, field("Launches whose work takes less time than the call.")]
    slow_launches: Annotated[int, field("Calls of more than 50 us.")]
    excess_delays: Annotated[int, field("Launches with more than 100 us of latency.")]


class Launches(Document, frozen=True):
    """How the work of the analysed GPU was launched."""

    count: Annotated[int, field("Launching calls.")]
    activities: Annotated[int, field("GPU activities with a known launch.")]
    unlinked: Annotated[int, field("GPU activities without.")]
    short_kernels: Annotated[int, field("Launches whose work takes less time than the call.")]
    slow_launches: Annotated[int, field("Calls of more than 50 us.")]
    excess_delays: Annotated[int, field("Launches with more than 100 us of latency.")]
    host_ns: Annotated[Distribution | None, field("Length of the calls.")]
    device_ns: Annotated[Distribution | None, field("Time of their work.")]
    delay_ns: Annotated[Distribution | None, field("From a call's end to its work's start.")]
    queueing_ns: Annotated[Distribution | None, field("Of the delay, behind earlier work of the stream.")]
    dependency_ns: Annotated[Distribution | None, field("Of the rest, waiting for an event.")]
    latency_ns: Annotated[Distribution | None, field("Of the rest, with the stream free.")]
    by_call: Annotated[tuple[LaunchCall, ...], field("By call.")]
    by_op: Annotated[tuple[LaunchOperator, ...], field("By operator, most host time first.")]


class CollectiveName(Document, frozen=True):
    """The collectives of one name and process group."""

    collective: Annotated[str, field("`all_reduce`, ..., or the kernel's short name.")]
    group: Annotated[str | None, field("Process group.")]
    count: Annotated[int, field("How many.")]
    sum_ns: Annotated[int, field("Summed length.", "ns")]
    mean_ns: Annotated[float, field("Mean length.", "ns")]
    median_ns: Annotated[float, field("Median length.", "ns")]
    max_ns: Annotated[int, field("Longest.", "ns")]
    exposed_ns: Annotated[int | None, field("Of the summed length, not hidden by computation.", "ns")]
    bytes: Annotated[int | None, field("Bytes, if said for all.", "B")]
    hidden_pct: Annotated[float | None, field("Share of its own length under computation.", "%")]


class CollectivesOfStep(Document, frozen=True):
    """The collectives that one step launched."""

    index: Annotated[int, field("The N of `ProfilerStep#N`.")]
    count: Annotated[int, field("How many.")]
    sum_ns: Annotated[int, field("Summed length.", "ns")]
    exposed_ns: Annotated[int | None, field("Of that, not hidden by computation.", "ns")]


class Collectives(Document, frozen=True):
    """What a rank communicated."""

    count: Annotated[int, field("Collectives.")]
    by_name: Annotated[tuple[CollectiveName, ...], field("By name and group, the most exposed first.")]
    by_step: Annotated[tuple[CollectivesOfStep, ...], field("Each step.")]


class AllReduceOfStep(Document, frozen=True):
    """The all-reduces that one step launched, each instant once."""

    index: Annotated[int, field("The N of `ProfilerStep#N`.")]
    count: Annotated[int, field("How many.")]
    bytes: Annotated[int | None, field("Bytes.", "B")]
    measured_ns: Annotated[int, field("Union of their spans, waiting for other ranks included.", "ns")]
    exposed_ns: Annotated[int | None, field("Of that, not hidden by computation.", "ns")]


class AllReduce(Document, frozen=True):
    """The all-reduces of a trace, each instant once; per step null without steps."""

    source: Annotated[Literal["gpu", "host"], field("Where they ran.")]
    count: Annotated[int, field("How many.")]
    bytes: Annotated[int | None, field("Bytes; null unless said for all.", "B")]
    measured_ns: Annotated[int, field("Union of their spans.", "ns")]
    exposed_ns: Annotated[int | None, field("Of that, not hidden by computation.", "ns")]
    overlap: Annotated[float | None, field("Share that computation hid.")]
    count_per_step: Annotated[float | None, field("Per step.")]
    bytes_per_step: Annotated[float | None, field("Per step.", "B")]
    measured_ns_per_step: Annotated[float | None, field("Per step.", "ns")]
    exposed_ns_per_step: Annotated[float | None, field("Per step.", "ns")]
    by_step: Annotated[tuple[AllReduceOfStep, ...], field("Each step.")]


class Redundant(Document, frozen=True):
    """All-reduces of gradients before the last pass of a step, over all steps."""

    count: Annotated[int, field("How many.")]
    bytes: Annotated[int | None, field("Bytes.", "B")]
    measured_ns: Annotated[int, field("Union of their spans.", "ns")]


class ReducePasses(Document, frozen=True):
    """Passes of a step by DistributedDataParallel's labels."""

    passes_per_step: Annotated[float, field("Forward passes per step.")]
    redundant: Annotated[Redundant, field("What need not have been reduced.")]


class QueueSeries(Document, frozen=True):
    """The queue of one stream, in equally long buckets."""

    stream: Annotated[int, field("Stream.")]
    mean: Annotated[tuple[float, ...], field("Mean length.")]
    max: Annotated[tuple[float, ...], field("Greatest length.")]


class CopySeries(Document, frozen=True):
    """The rate of one kind of copy, in equally long buckets."""

    kind: Annotated[str, field("Kind of copy.")]
    mean: Annotated[tuple[float, ...], field("Mean rate.", "B/s")]
    max: Annotated[tuple[float, ...], field("Highest rate.", "B/s")]


class Series(Document, frozen=True):
    """Queues and copies of the analysed GPU over time, small enough to draw."""

    edges: Annotated[tuple[int, int], field("First and last instant of the buckets.", "ns")]
    queues: Annotated[tuple[QueueSeries, ...], field("The busiest streams.")]
    copies: Annotated[tuple[CopySeries, ...], field("The kinds with the most bytes.")]


class DeviceMemory(Document, frozen=True):
    """The peak of one device's memory."""

    device_type: Annotated[str, field("`cpu`, `cuda`, or the profiler's number.")]
    device: Annotated[int | None, field("Index; null for the host.")]
    peak_allocated_bytes: Annotated[int, field("Allocated at the peak.", "B")]
    peak_reserved_bytes: Annotated[int | None, field("Most reserved; null on the host.", "B")]
    peak_ts: Annotated[int, field("First instant of the peak.", "ns")]
    before_bytes: Annotated[int, field("Held since before the trace, as far as known.", "B")]
    complete: Annotated[bool, field("Whether that is known.")]
    counter_agrees: Annotated[float | None, field("Share of events whose counter is the sum of the live blocks.")]
    capacity_bytes: Annotated[int | None, field("What was to be had.", "B")]
    capacity_source: Annotated[str | None, field("Who says so: `limit`, `device`, `machine`.")]
    headroom_bytes: Annotated[int | None, field("Capacity less what was taken.", "B")]
    fragmentation: Annotated[float | None, field("1 - largest free block / free.")]
    by_category: Annotated[dict[str, int], field("Live at the peak; adds up to `peak_allocated_bytes`.", "B")]
    at_peak: Annotated[tuple[AtPeak, ...], field("Live at the peak by origin, largest first.")]
    curve: Annotated[
        tuple[tuple[int, int, int | None], ...], field("Instant (ns), allocated, reserved (B), a point each.")
    ]


class ClassOfPath(Document, frozen=True):
    """One class of work on the steps' critical path; means over the steps."""

    class_: Annotated[str, field("Class, as the table `critical_steps` has them.")] = msgspec.field(name="class")
    path_ns: Annotated[int | None, field("On the path.", "ns")]
    share: Annotated[float | None, field("Of the step.")]
    left_ns: Annotated[int | None, field("What a step would take without all work of the class.", "ns")]
    saved_ns: Annotated[int | None, field("What that saves.", "ns")]


class CriticalPath(Document, frozen=True):
    """What the steps' time was spent on, one thing after the other."""

    steps: Annotated[int, field("Steps; 0: the whole trace.")]
    span_ns: Annotated[int, field("Mean length of a step.", "ns")]
    classes: Annotated[tuple[ClassOfPath, ...], field("By class.")]


class LineTime(Document, frozen=True):
    """GPU time by source line."""

    file: Annotated[str, field("File.")]
    line: Annotated[int | None, field("Line; of backward work that of the forward operator.")]
    function: Annotated[str | None, field("Function.")]
    code: Annotated[str | None, field("Text of the line.")]
    kernels: Annotated[int, field("GPU activities.")]
    device_ns: Annotated[int, field("Their lengths, summed.", "ns")]
    backward_ns: Annotated[int, field("Of that, in backward.", "ns")]
    share: Annotated[float, field("Of all GPU time.")]


class OperatorTime(Document, frozen=True):
    """GPU time by innermost operator."""

    op: Annotated[str | None, field("Operator; null for work that none launched.")]
    kernels: Annotated[int, field("GPU activities.")]
    device_ns: Annotated[int, field("Their lengths, summed.", "ns")]
    backward_ns: Annotated[int, field("Of that, in backward.", "ns")]
    share: Annotated[float, field("Of all GPU time.")]


class FlameBox(Document, frozen=True):
    """One box of a flame graph."""

    name: Annotated[str, field("Name shown.")]
    kind: Annotated[str, field("As the table `flame` has it.")]
    calls: Annotated[int, field("Events merged into it.")]
    ns: Annotated[int, field("Its width.", "ns")]
    parent: Annotated[int | None, field("Place in the list of the box below it.")]


class Flame(Document, frozen=True):
    """A flame graph without its narrowest boxes."""

    total_ns: Annotated[int, field("Width of the root.", "ns")]
    boxes_left_out: Annotated[int, field("Boxes too narrow to be shown.")]
    boxes: Annotated[tuple[FlameBox, ...], field("Parents before children.")]


class Program(Document, frozen=True):
    """Where in the program GPU and host time go."""

    by_line: Annotated[tuple[LineTime, ...] | None, field("By source line; null without a GPU.")]
    by_operator: Annotated[tuple[OperatorTime, ...] | None, field("By operator; null without a GPU.")]
    device_flame: Annotated[Flame | None, field("GPU time.")]
    host_flame: Annotated[Flame | None, field("Host time.")]


class SequenceEntry(Document, frozen=True):
    """Neighbouring activities of one name in a sequence."""

    name: Annotated[str, field("Short name.")]
    times: Annotated[int, field("How often one after the other.")]


class Sequence(Document, frozen=True):
    """A sequence of GPU activities that recurs under one operator or label."""

    kind: Annotated[str, field("`op` or `annotation`.")]
    name: Annotated[str, field("Operator or label.")]
    length: Annotated[int, field("Activities in the sequence.")]
    count: Annotated[int, field("Calls that launched exactly this sequence.")]
    kernel_ns: Annotated[int, field("Lengths of the activities over all calls.", "ns")]
    span_ns: Annotated[int, field("First start to last end over all calls.", "ns")]
    host_ns: Annotated[int, field("Lengths of the calls on the host.", "ns")]
    kernels: Annotated[tuple[SequenceEntry, ...], field("The activities.")]
    left_out: Annotated[int, field("Entries beyond the first that are listed.")]


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
    from_types_ns: Annotated[int, field("Told by the operator's input types alone.", "ns")]
    tf32_ns: Annotated[int, field("Of the 32-bit time, in TF32 products.", "ns")]
    tensor_core_ns: Annotated[int, field("Matrix work on tensor cores.", "ns")]
    tensor_core_eligible_ns: Annotated[int, field("Matrix work that tensor cores could do.", "ns")]
    tensor_core_no_ns: Annotated[int, field("Of that, not on tensor cores.", "ns")]
    tensor_core_unknown_ns: Annotated[int, field("Of that, no name tells.", "ns")]
    eligible_16_ns: Annotated[int, field("Of the eligible, in 16 bits or fewer.", "ns")]
    kernels: Annotated[tuple[KernelFormat, ...], field("The eligible kernels with the most time.")] = ()


class Lane(Document, frozen=True):
    """One lane of the picture of a step: its boxes as columns."""

    kind: Annotated[str, field("`host`, `calls`, `syncs`, `idle` or `stream`.")]
    name: Annotated[str, field("What stands at it.")]
    start_ns: Annotated[tuple[int, ...], field("Start of each box within the time shown.", "ns")]
    dur_ns: Annotated[tuple[int, ...], field("Length of each box.", "ns")]
    level: Annotated[tuple[int, ...], field("Row of each box within the lane.")]
    events: Annotated[tuple[int, ...], field("Events that each box stands for.")]
    time_ns: Annotated[tuple[int, ...], field("Their lengths, summed.", "ns")]
    what: Annotated[tuple[int, ...], field("Place of each box's kind and name in `kinds` and `names`.")]


class Timeline(Document, frozen=True):
    """One step, the median one, as a picture shows it."""

    step: Annotated[int | None, field("The N of `ProfilerStep#N`.")]
    from_ns: Annotated[int, field("Start of the time shown.", "ns")]
    span_ns: Annotated[int, field("Its length.", "ns")]
    host_ns: Annotated[int | None, field("Length of the step on the host.", "ns")]
    events: Annotated[int, field("Events in that time.")]
    left_out: Annotated[tuple[str, ...], field("Lanes that are not drawn.")]
    kinds: Annotated[tuple[str, ...], field("Kinds of boxes.")]
    names: Annotated[tuple[str, ...], field("Names of boxes.")]
    lanes: Annotated[tuple[Lane, ...], field("From top to bottom.")]


class TraceSummary(StepFigures, frozen=True):
    """What one trace says. `device` is the GPU with the most activity time, which figures of one GPU are about."""

    path: Annotated[str, field("The trace file.")]
    sha256: Annotated[str, field("Its digest.")]
    rank: Annotated[int | None, field("Rank, if the trace says it.")]
    world_size: Annotated[int | None, field("Number of ranks, if the trace says it.")]
    device: Annotated[int | None, field("The analysed GPU; null without GPU work.")]
    device_name: Annotated[str | None, field("Its name.")]
    compute_major: Annotated[int | None, field("Its compute capability's first number.")]
    window_ns: Annotated[int, field("First event to last.", "ns")]
    quality: Quality
    gpu: GpuTime
    devices: tuple[DeviceTime, ...]
    temporal: tuple[TemporalRow, ...]
    steps: tuple[StepTime, ...]
    sections: tuple[Section, ...]
    idle: Idle
    host_gaps: HostGaps | None
    input: Input
    kernels: tuple[KernelName, ...]
    kernel_types: tuple[KernelType, ...]
    syncs: Syncs
    step_parts: StepParts | None
    whatif: WhatIf | None
    launches: Launches | None
    collectives: Collectives | None
    all_reduce: AllReduce | None
    all_reduce_passes: ReducePasses | None
    queues: tuple[Queue, ...]
    copies: tuple[Copy, ...]
    series: Series | None
    memory: tuple[DeviceMemory, ...] | None
    annotations: tuple[Label, ...]
    optimizer: tuple[OptimizerCall, ...] | None
    critical_path: CriticalPath | None
    program: Program
    sequences: tuple[Sequence, ...]
    overview: Overview | None
    placement: Placement | None
    precision: Precision | None
    timeline: Timeline | None
    findings: tuple[Finding, ...] = ()


class Straggler(Document, frozen=True):
    """The rank that the others wait for most."""

    rank: Annotated[int, field("Rank.")]
    share: Annotated[float, field("Of all waiting, what it caused.")]
    caused_ns: Annotated[int, field("That waiting.", "ns")]
    delay_ns: Annotated[int, field("How much sooner its collectives could have begun.", "ns")]


class MatchedName(Document, frozen=True):
    """Matched collectives of one name and group."""

    collective: Annotated[str, field("Collective.")]
    group: Annotated[str | None, field("Process group.")]
    count: Annotated[int, field("How many.")]
    wait_ns: Annotated[int, field("Waiting in them, over the ranks.", "ns")]


class RankCollectives(Document, frozen=True):
    """The collectives of all ranks."""

    total: Annotated[int, field("All of all ranks.")]
    matched: Annotated[int, field("Parts found on another rank too.")]
    matched_by: Annotated[dict[str, int], field("How they were matched.")]
    by_name: Annotated[tuple[MatchedName, ...], field("By name and group, most waiting first.")]


class RankAllReduce(Document, frozen=True):
    """All-reduces per step, medians over the ranks, beside what they should take at the measured bandwidth."""

    source: Annotated[str, field("`gpu` or `host`.")]
    count_per_step: Annotated[float | None, field("How many.")]
    bytes_per_step: Annotated[float | None, field("Bytes.", "B")]
    measured_ns_per_step: Annotated[float | None, field("Union of their spans.", "ns")]
    exposed_ns_per_step: Annotated[float | None, field("Of that, not hidden by computation.", "ns")]
    overlap: Annotated[float | None, field("Share that computation hid.")]
    wait_ns_per_step: Annotated[float | None, field("Waiting for other ranks, mean over the ranks.", "ns")]
    expected_ns: Annotated[int | None, field("parameter bytes x 2(n-1)/n / measured bandwidth.", "ns")]
    simplified_ns: Annotated[int | None, field("parameters x 4 / measured bandwidth.", "ns")]
    bus_bytes_per_s: Annotated[float | None, field("Measured bus bandwidth.", "B/s")]


class Ranks(Document, frozen=True):
    """How the ranks of one job differ."""

    count: Annotated[int, field("Ranks.")]
    straggler: Annotated[Straggler | None, field("Null if no rank stands out.")]
    waits: tuple[RankWait, ...]
    collectives: RankCollectives
    kernels: tuple[RankKernel, ...]
    all_reduce: RankAllReduce | None
    findings: tuple[Finding, ...] = ()


class TraceExcerpt(Document, frozen=True):
    """The median step of a run's trace as a small trace of its own."""

    file: Annotated[str, field("Its file, beside the trace.")]
    bytes: Annotated[int, field("Its size.", "B")]
    step: Annotated[int | None, field("The step that it shows.")]
    whole: Annotated[bool, field("Whether that is there whole.")]
    left_out: Annotated[tuple[str, ...], field("Categories of events that were left out.")]


class Summary(Document, frozen=True):
    """The content of summary.json."""

    schema_version: Annotated[int, field("Version of this document.")]
    warnings: Annotated[tuple[str, ...], field("What keeps the traces from being one job's.")]
    traces: Annotated[tuple[TraceSummary, ...], field("Each trace, by rank.")]
    ranks: Annotated[Ranks | None, field("What the ranks say together; null for one trace.")] = None
    trace_excerpt: Annotated[TraceExcerpt | None, field("Of a run's first repeat, an excerpt.")] = None
    error: Annotated[str | None, field("Why the traces of a run could not be read.")] = None
