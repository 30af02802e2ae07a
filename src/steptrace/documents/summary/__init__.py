"""summary.json: what one set of traces says, in numbers. Times are integer nanoseconds; sums and medians say so."""

from typing import Annotated

from steptrace.documents.base import Document, File, field
from steptrace.documents.column import subject
from steptrace.documents.finding import Finding
from steptrace.documents.queues import Queue
from steptrace.documents.rows import (
    AtPeak,
    Copy,
    KernelName,
    KernelType,
    Label,
    OptimizerCall,
    QualityCheck,
    TemporalRow,
)
from steptrace.documents.step_figures import StepFigures
from steptrace.documents.summary.communication import (
    AllReduce,
    Collectives,
    RankAllReduce,
    RankCollectives,
    RankKernel,
    RankWait,
    ReducePasses,
    Straggler,
)
from steptrace.documents.summary.launches import Launches, Series
from steptrace.documents.summary.program import CriticalPath, Program, Sequence, Timeline
from steptrace.documents.summary.time import (
    DeviceTime,
    GpuTime,
    HostGaps,
    Idle,
    Input,
    Overview,
    Placement,
    Precision,
    Section,
    StepParts,
    StepTime,
)
from steptrace.documents.syncs import Syncs, WhatIf


class Quality(Document, frozen=True):
    """What a reader should know before trusting a trace's figures."""

    steps: Annotated[int, field("Steps counted.")]
    launch_coverage: Annotated[float | None, field("Share of GPU work with a known launch; null without GPU work.")]
    warnings: Annotated[tuple[str, ...], field("The reader's notes and the checks that failed.")]
    checks: Annotated[tuple[QualityCheck, ...], field("Every check.")]


class DeviceMemory(Document, frozen=True):
    """The peak of one device's memory, and what steps leave behind there."""

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
    growth_bytes: Annotated[
        tuple[int, ...] | None,
        field("What each step left behind, but a program's first and the window's last: see docs/memory.md.", "B"),
    ] = None
    kept: Annotated[
        tuple[AtPeak, ...], field("What of these steps is live when the window ends, by origin, largest first.")
    ] = ()


class TraceSummary(StepFigures, frozen=True):
    """What one trace says. `device` is the GPU with the most activity time, which figures of one GPU are about."""

    path: Annotated[str, field("The trace file.")]
    sha256: Annotated[str, field("Its digest.")]
    rank: Annotated[int | None, field("Rank, if the trace says it.")]
    world_size: Annotated[int | None, field("Number of ranks, if the trace says it.")]
    device: Annotated[int | None, field("The analysed GPU; null without GPU work.", runs="same")]
    device_name: Annotated[str | None, field("Its name.")]
    compute_major: Annotated[int | None, field("Its compute capability's first number.")]
    window_ns: Annotated[int, field("First event to last.", "ns")]
    unprofiled_step_ns: Annotated[
        int | None, field("Median of the unprofiled steps before it, from the record beside it; null without.", "ns")
    ]
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
    syncs: Annotated[Syncs, subject("Where the host waits", "the trace holds no call into a GPU's runtime")]
    step_parts: StepParts | None
    whatif: WhatIf | None
    launches: Launches | None
    collectives: Collectives | None
    all_reduce: AllReduce | None
    all_reduce_passes: ReducePasses | None
    queues: Annotated[tuple[Queue, ...], subject("Queues", "the trace holds no GPU activity with its launch")]
    copies: tuple[Copy, ...]
    series: Annotated[Series | None, field("Queues and copies over time.", runs="none")]
    memory: tuple[DeviceMemory, ...] | None
    annotations: tuple[Label, ...]
    optimizer: tuple[OptimizerCall, ...] | None
    critical_path: CriticalPath | None
    program: Annotated[Program, field("Where in the program time goes.", runs="none")]
    sequences: Annotated[tuple[Sequence, ...], field("Recurring sequences of kernels.", runs="none")]
    overview: Overview | None
    placement: Placement | None
    precision: Precision | None
    timeline: Annotated[Timeline | None, field("The picture of a step.", runs="none")]
    findings: Annotated[tuple[Finding, ...], field("What rules found.", runs="none")] = ()
    training: Annotated[
        bool | None, field("Whether there is a backward pass or an optimizer step; null where operators cannot tell.")
    ] = None


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


class Summary(File, frozen=True, kw_only=True):
    """The content of summary.json."""

    warnings: Annotated[tuple[str, ...], field("What keeps the traces from being one job's.")]
    traces: Annotated[tuple[TraceSummary, ...], field("Each trace, by rank.")]
    ranks: Annotated[Ranks | None, field("What the ranks say together; null for one trace.")] = None
    trace_excerpt: Annotated[TraceExcerpt | None, field("Of a run's first repeat, an excerpt.")] = None
    error: Annotated[str | None, field("Why the traces of a run could not be read.")] = None
