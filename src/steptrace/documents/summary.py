"""summary.json: what one set of traces says, in numbers. Times are integer nanoseconds; sums and medians say so."""

from typing import Annotated

from steptrace.documents.base import Document, File, field
from steptrace.documents.column import subject
from steptrace.documents.communication import AllReduce, Collectives, ReducePasses
from steptrace.documents.copies import Copy, Series
from steptrace.documents.finding import Finding
from steptrace.documents.gpu_time import DeviceTime, GpuTime, StepTime, TemporalRow
from steptrace.documents.idle import HostGaps, Idle
from steptrace.documents.input import Input
from steptrace.documents.kernels import KernelName, KernelType, Precision, Sequence
from steptrace.documents.labels import Label, OptimizerCall, Section
from steptrace.documents.launches import Launches
from steptrace.documents.memory import DeviceMemory
from steptrace.documents.overview import Overview, Placement, StepParts
from steptrace.documents.program import CriticalPath, Program
from steptrace.documents.quality import Quality
from steptrace.documents.queues import Queue
from steptrace.documents.ranks import Ranks
from steptrace.documents.step_figures import StepFigures
from steptrace.documents.syncs import Syncs, WhatIf
from steptrace.documents.timeline import Timeline


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
