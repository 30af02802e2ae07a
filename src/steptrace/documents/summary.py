"""summary.json: what one set of traces says, in numbers. Times are integer nanoseconds; sums and medians say so."""

from typing import Annotated, Final

import msgspec

from steptrace.documents.base import File, InRuns, field, subject
from steptrace.documents.communication import AllReduce, Collectives
from steptrace.documents.copies import Copy
from steptrace.documents.finding import Finding
from steptrace.documents.idle import HostGaps, Idle
from steptrace.documents.input import Input
from steptrace.documents.kernels import KernelName, KernelType, Precision, Sequence
from steptrace.documents.labels import Label
from steptrace.documents.launches import Launches
from steptrace.documents.memory import DeviceMemory
from steptrace.documents.overview import Overview
from steptrace.documents.program import CriticalPath, Program
from steptrace.documents.quality import Quality
from steptrace.documents.ranks import Ranks
from steptrace.documents.roofline import OperatorRoofline
from steptrace.documents.steps import GpuTime, StepFigures, StepKind, StepTime
from steptrace.documents.streams import Queue, Stream, StreamsAtOnce
from steptrace.documents.syncs import Syncs
from steptrace.documents.timeline import Timeline

#: Why a GPU's figures are missing.
NO_GPU: Final = "the trace holds no GPU activity"
LOST_GPU: Final = "too many of the GPU's records are missing"
ONE_STREAM: Final = "all GPU work ran on one stream"


class TraceSummary(StepFigures, frozen=True, kw_only=True):
    """What one trace says; its subjects stand in the order of the page.

    `device` is the GPU with the most activity time, which figures of one GPU are about.
    """

    runs: InRuns = msgspec.UNSET
    path: Annotated[str, field("The trace file.")]
    sha256: Annotated[str, field("Its digest.")]
    rank: Annotated[int | None, field("Rank, if the trace says it.", kind="fact")]
    world_size: Annotated[int | None, field("Number of ranks, if the trace says it.", kind="fact")]
    device: Annotated[int | None, field("The analysed GPU; null without GPU work.", kind="fact")]
    device_name: Annotated[str | None, field("Its name.")]
    compute_major: Annotated[int | None, field("Its compute capability's first number.", kind="fact")]
    window_ns: Annotated[int, field("First event to last.", kind="sum")]
    unprofiled_step_ns: Annotated[
        int | None,
        field("Median of the unprofiled steps before it, from the record beside it; null without.", kind="mean"),
    ]
    unprofiled_mean_ns: Annotated[int | None, field("Mean of the same steps.", kind="mean")] = None
    unprofiled_alike_ns: Annotated[
        int | None,
        field("What unprofiled steps of the same kinds as the profiled ones take on average.", kind="mean"),
    ] = None
    profiled_over_unprofiled: Annotated[
        float | None,
        field("Median profiled step of the usual kind over the median unprofiled one of that kind.", kind="rate"),
    ] = None

    overview: Annotated[Overview | None, subject("Overview", "the trace holds neither GPU activity nor labelled steps")]
    precision: Precision | None
    step_kinds: Annotated[tuple[StepKind, ...], subject("Kinds of steps", "")] = ()
    findings: Annotated[tuple[Finding, ...], field("Findings of the rules.", kind="first")] = ()
    idle: Annotated[
        Idle, subject("Why the GPU is idle", "the trace holds fewer than two GPU activities", needs_gpu=True)
    ]
    host_gaps: HostGaps | None
    syncs: Annotated[Syncs, subject("Syncs", "the trace holds no call into a GPU's runtime", needs_gpu=True)]
    input: Annotated[Input, subject("Waiting for data", "the trace holds no label of a data loader")]
    kernels: Annotated[tuple[KernelName, ...], subject("Kernels", NO_GPU)]
    kernel_types: tuple[KernelType, ...]
    collectives: Annotated[Collectives | None, subject("Communication", "the trace holds no collective")]
    all_reduce: AllReduce | None
    program: Annotated[
        Program,
        subject(
            "Where in the program",
            "the trace holds no Python frames; the profiler records them with `with_stack=True`",
            kind="first",
        ),
    ]

    gpu: Annotated[GpuTime, subject("GPU time", NO_GPU, folded=True)]
    roofline: Annotated[
        tuple[OperatorRoofline, ...],
        subject(
            "Operators against the data sheet",
            "the trace holds no sizes of inputs; the profiler records them with `record_shapes=True`",
            needs_gpu=True,
            folded=True,
        ),
    ]
    steps: Annotated[tuple[StepTime, ...], field("Each step.", kind="first")]
    timeline: Annotated[
        Timeline | None,
        subject("Trace view", "the trace holds no operators, labels or GPU work", folded=True, kind="first"),
    ]
    critical_path: Annotated[
        CriticalPath | None, subject("Critical path", "the trace holds no host event", folded=True)
    ]
    labels: Annotated[tuple[Label, ...], subject("Labels", "the trace holds no label", folded=True)]
    sequences: Annotated[
        tuple[Sequence, ...],
        subject(
            "Sequences of kernels",
            "no operator or label launched the same row of two or more kernels more than once",
            needs_gpu=True,
            folded=True,
            kind="first",
        ),
    ]
    launches: Annotated[
        Launches | None, subject("Launches", "no GPU activity has its launch in the trace", needs_gpu=True, folded=True)
    ]
    queues: Annotated[
        tuple[Queue, ...], subject("Queues", "no GPU activity has its launch in the trace", needs_gpu=True, folded=True)
    ]
    streams_at_once: Annotated[
        tuple[StreamsAtOnce, ...], subject("Streams at once", ONE_STREAM, needs_gpu=True, folded=True)
    ] = ()
    streams: Annotated[tuple[Stream, ...], subject("Streams", ONE_STREAM, needs_gpu=True, folded=True)] = ()
    copies: Annotated[
        tuple[Copy, ...], subject("Copies", "the trace holds no copy and no memory set", needs_gpu=True, folded=True)
    ]
    memory: Annotated[
        tuple[DeviceMemory, ...] | None,
        subject(
            "Memory",
            "the trace holds no allocations; the profiler records them with `profile_memory=True`",
            folded=True,
        ),
    ]
    quality: Annotated[Quality, subject("Trace quality", "nothing was checked", folded=True)]
    training: Annotated[
        bool | None, field("Whether there is a backward pass or an optimizer step; null where operators cannot tell.")
    ] = None

    @property
    def used_gpu(self) -> bool:
        """Whether the program used a GPU, as far as the trace shows: its work, or launches of it."""
        return self.gpu.activities > 0 or bool(self.quality.lost)

    @property
    def gpu_measured(self) -> bool:
        """Whether there are figures of a GPU: it did something, and hardly any record of it is missing."""
        return self.gpu.activities > 0 and self.quality.gpu_measured is not False


class Summary(File, frozen=True, kw_only=True):
    """The content of summary.json."""

    schema_version: Annotated[int, field("Version of this document.")] = 11
    warnings: Annotated[tuple[str, ...], field("What keeps the traces from being one job's.")]
    traces: Annotated[tuple[TraceSummary, ...], field("Each trace, by rank.")]
    ranks: Annotated[Ranks | None, field("What the ranks say together; null for one trace.")] = None
    error: Annotated[str | None, field("Why the traces of a run could not be read.")] = None
