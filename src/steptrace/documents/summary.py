"""summary.json: what one set of traces says, in numbers. Times are integer nanoseconds; sums and medians say so."""

from typing import Annotated, Final

import msgspec

from steptrace.documents.base import File, InRuns, field
from steptrace.documents.communication import AllReduce, Collectives
from steptrace.documents.compilation_rows import CompiledFunctionRow, GraphBreakRow, RecompilationRow
from steptrace.documents.copies import Copy
from steptrace.documents.finding import Finding
from steptrace.documents.idle import HostGaps, Idle
from steptrace.documents.input import Input
from steptrace.documents.kernels import KernelName, KernelType, Precision, Sequence
from steptrace.documents.labels import Label
from steptrace.documents.launches import Launches
from steptrace.documents.memory import DeviceMemory
from steptrace.documents.note import Note
from steptrace.documents.overview import Overview
from steptrace.documents.program import CriticalPath, Program
from steptrace.documents.quality import Quality
from steptrace.documents.ranks import Ranks
from steptrace.documents.roofline import OperatorRoofline
from steptrace.documents.steps import GpuTime, StepFigures, StepKind, StepTime
from steptrace.documents.streams import Queue, StreamRow, StreamsAtOnce
from steptrace.documents.subject import Absence, subject, with_table_subjects
from steptrace.documents.syncs import TracedSyncs
from steptrace.documents.timeline import Timeline

#: PyTorch's module of devices of CUDA and ROCm.
CUDA: Final = "torch.cuda"


@with_table_subjects
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
    unprofiled_iqr_over_median: Annotated[
        float | None, field("Interquartile range of the same steps over their median.", kind="mean")
    ] = None
    unprofiled_alike_ns: Annotated[
        int | None,
        field("What unprofiled steps of the same kinds as the profiled ones take on average.", kind="mean"),
    ] = None
    profiled_over_unprofiled: Annotated[
        float | None,
        field("Median profiled step of the usual kind over the median unprofiled one of that kind.", kind="rate"),
    ] = None

    overview: Annotated[Overview | None, subject("Overview", "neither_gpu_work_nor_labelled_steps", "before_findings")]
    precision: Precision | None
    step_kinds: Annotated[tuple[StepKind, ...], subject("Kinds of steps", None)] = ()
    findings: Annotated[tuple[Finding, ...], field("Findings of the rules.", kind="first")] = ()
    idle: Annotated[Idle, subject("Why the GPU is idle", "fewer_than_two_gpu_activities", "needs_gpu")]
    host_gaps: HostGaps | None
    syncs: Annotated[TracedSyncs, subject("Syncs", "no_runtime_calls", "needs_gpu", "not_on_study")]
    input: Annotated[Input, subject("Waiting for data", "no_loader_label")]
    kernels: Annotated[tuple[KernelName, ...], subject("Kernels", "no_gpu_work", "counts_unlinked")]
    kernel_types: tuple[KernelType, ...]
    collectives: Annotated[Collectives | None, subject("Communication", "no_collective")]
    all_reduce: AllReduce | None
    program: Annotated[Program, subject("Where in the program", "no_python_frames", kind="first")]
    compiled_functions: Annotated[
        tuple[CompiledFunctionRow, ...], subject("Compilations", None, "of_one_trace", "compared")
    ] = ()
    graph_breaks: Annotated[tuple[GraphBreakRow, ...], subject("Graph breaks", None, "compared")] = ()
    recompilations: Annotated[tuple[RecompilationRow, ...], subject("Recompilations", None, "compared")] = ()

    gpu: Annotated[GpuTime, subject("GPU time", "no_gpu_work", "folded", "not_on_study")]
    roofline: Annotated[
        tuple[OperatorRoofline, ...],
        subject("Roofline", "no_input_sizes", "needs_gpu", "of_one_trace", "compared", "follows_launches"),
    ]
    steps: Annotated[tuple[StepTime, ...], field("Each step.", kind="first")]
    timeline: Annotated[
        Timeline | None,
        subject("Timeline of a step", "no_operators_labels_or_gpu_work", "of_one_trace", "at_top", kind="first"),
    ]
    critical_path: Annotated[CriticalPath | None, subject("Critical path", "no_host_event", "folded")]
    labels: Annotated[tuple[Label, ...], subject("Labels", "no_label", "folded", "compared")]
    sequences: Annotated[
        tuple[Sequence, ...],
        subject(
            "Kernel sequences",
            "no_repeated_sequence",
            "needs_gpu",
            "folded",
            "not_on_study",
            "follows_launches",
            kind="first",
        ),
    ]
    launches: Annotated[
        Launches | None, subject("Launches", "no_linked_launch", "needs_gpu", "folded", "follows_launches")
    ]
    queues: Annotated[
        tuple[Queue, ...], subject("Queues", "no_linked_launch", "needs_gpu", "folded", "compared", "follows_launches")
    ]
    streams_at_once: Annotated[
        tuple[StreamsAtOnce, ...], subject("Streams at once", "one_stream", "needs_gpu", "folded", "compared")
    ] = ()
    streams: Annotated[tuple[StreamRow, ...], subject("Streams", "one_stream", "needs_gpu", "folded", "compared")] = ()
    copies: Annotated[
        tuple[Copy, ...], subject("Copies", "no_copy", "needs_gpu", "folded", "compared", "counts_unlinked")
    ]
    memory: Annotated[tuple[DeviceMemory, ...] | None, subject("Memory", "no_allocations", "of_one_trace")]
    quality: Annotated[Quality, subject("Trace quality", "nothing_checked", "folded")]
    absent: Annotated[
        dict[str, Absence | None],
        field(
            "Why a subject is null or empty, by its name: the code of what the trace lacks; null if nothing is "
            "missing.",
            kind="first",
        ),
    ] = msgspec.field(default_factory=dict)
    device_module: Annotated[
        str,
        field("PyTorch's module of the device: `torch.cuda`, `torch.xpu`, ...; `torch.accelerator` of an unknown one."),
    ] = CUDA
    ranks_read: Annotated[
        int,
        field(
            "Traces of ranks of its job that were read together, this one included; `world_size` says of how many.",
            kind="min",
        ),
    ] = 1
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

    schema_version: Annotated[int, field("Version of this document.")] = 12
    warnings: Annotated[tuple[str, ...], field("The notes as sentences.")]
    traces: Annotated[tuple[TraceSummary, ...], field("Each trace, by rank.")]
    ranks: Annotated[Ranks | None, field("What the ranks say together; null for one trace.")] = None
    error: Annotated[str | None, field("Why the traces of a run could not be read.")] = None
    notes: Annotated[
        tuple[Note, ...],
        field("Why the traces are not the ranks of one job, not all of its ranks, or not all that were found."),
    ] = ()
