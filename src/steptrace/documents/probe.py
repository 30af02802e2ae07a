"""The records that the probe writes to a program's folder, as structs for their readers.

The probe runs in the program's environment, which may have nothing but PyTorch and the standard library. It writes
dataclasses with the same names and fields; a test compares both.
"""

from typing import Annotated, Literal

from steptrace.documents.base import Document, File, field
from steptrace.documents.compilations import Compilations
from steptrace.documents.compiled import CompiledStep
from steptrace.documents.estimate import OperatorCalls
from steptrace.documents.note import Note
from steptrace.documents.run import Communication, NvmlMeans, OpLine, SectionOfRun


class ProgramPlace(Document, frozen=True, kw_only=True):
    """A place in the program at which something happens."""

    op: Annotated[str, field("Operator.")]
    file: Annotated[str | None, field("File of the line; null where no line of the program is on the stack.")]
    line: Annotated[int | None, field("Line in it; for backward work the line of the forward operator.")]
    function: Annotated[str | None, field("Function that the line stands in.")]
    code: Annotated[str | None, field("Text of the line.")]
    label: Annotated[str | None, field("Innermost `record_function` label.")]
    phase: Annotated[str, field("`data`, `forward`, `backward`, `optimizer` or `other`.")]
    reason: Annotated[str, field("Why it is listed.")]
    program_file: Annotated[str | None, field("Where that line is a library's: file of the program's line.")] = None
    program_line: Annotated[int | None, field("That line.")] = None
    by_step: Annotated[tuple[int, ...], field("How often in each step; empty where steps are not told apart.")] = ()


class CountedPlace(ProgramPlace, frozen=True, kw_only=True):
    """A place in the program, and how often something happened there over all followed steps."""

    count: Annotated[int, field("How often, over all followed steps.")]


class Site(CountedPlace, frozen=True, kw_only=True):
    """A place that makes the host wait."""

    kind: Annotated[str, field("What waits: a copy, a stream, an event, the device.")]
    pinned: Annotated[bool | None, field("Of a copy to the device: whether the host's memory is pinned.")] = None


class StepBranch(Document, frozen=True, kw_only=True):
    """A line at which the program branches on a step counter."""

    file: Annotated[str, field("Its file.")]
    line: Annotated[int, field("Its line.")]
    every: Annotated[int, field("After so many steps it branches in the same way again.")]


class AwaitedBranch(Document, frozen=True, kw_only=True):
    """A line at which the program waits for its step counter, and that was not taken in the followed steps."""

    file: Annotated[str, field("Its file.")]
    line: Annotated[int, field("Its line.")]
    awaits: Annotated[str, field("By what: `number`, `list` or `iterator`.")]
    in_steps: Annotated[int | None, field("Steps from the last followed one to the one that takes it.")]


class Prediction(Document, frozen=True, kw_only=True):
    """What was followed of one rank: all counts are over all followed steps together."""

    total: Annotated[int, field("Syncs, over all followed steps.")]
    sites: Annotated[tuple[Site, ...], field("Where they are.")]
    unknown: Annotated[tuple[CountedPlace, ...], field("Operations whose syncs could not be judged.")]
    operators_per_section: Annotated[dict[str, int], field("Operators that do work, by label, over all steps.")]
    operators: Annotated[int, field("Operators that do work, over all followed steps.")]
    assumed: Annotated[
        tuple[CountedPlace, ...], field("Where the program read values that the prediction had not computed.")
    ] = ()
    early_reads: Annotated[tuple[CountedPlace, ...], field("Where it read a copy that may be under way.")] = ()
    peak_memory_bytes: Annotated[int | None, field("The most bytes that the allocator held.")] = None
    batch_size: Annotated[int | None, field("Batch size of the config that was followed.")] = None
    operator_calls: Annotated[tuple[OperatorCalls, ...], field("Calls of operators, over all followed steps.")] = ()
    queue: Annotated[tuple[int, ...], field("Their order over all followed steps; -1 is a sync.")] = ()
    compiled: Annotated[
        CompiledStep | None, field("The same with compiled code; null where nothing is compiled, or not followed.")
    ] = None
    devices: Annotated[int, field("GPUs that train together.")] = 1
    tf32: Annotated[bool, field("Whether float32 products may be in TF32.")] = False
    tf32_convolutions: Annotated[bool, field("The same of convolutions.")] = True
    gpu: Annotated[str, field("The GPU that the program was told of.")]
    by_step: Annotated[tuple[int, ...], field("Syncs of each step; empty where steps are not told apart.")] = ()
    warmup_by_step: Annotated[tuple[int, ...], field("Syncs of each step before them.")] = ()
    branches: Annotated[tuple[StepBranch, ...], field("Where the program branches on a step counter.")] = ()
    awaited: Annotated[
        tuple[AwaitedBranch, ...], field("Where it waits for its step counter, not taken in these steps.")
    ] = ()


class MeasuredStep(Document, frozen=True, kw_only=True):
    """A step of one rank."""

    phase: Annotated[str, field("`warmup`, `timed` or `profiled`.")]
    step_ns: Annotated[int, field("Its time.")]
    loss: Annotated[float | None, field("The sum of its losses; null where none was seen, or not yet read.")]
    backwards: Annotated[int, field("Backward passes in it.")]
    batches: Annotated[int, field("Batches in it; 0 without a loader.")]
    samples: Annotated[int | None, field("Samples in these; null where the loader does not say it.")]
    wait_ns: Annotated[int, field("The host's wait for them.")]
    skipped: Annotated[bool, field("Whether a gradient scaler skipped it.")]
    new_leader: Annotated[bool, field("Whether another optimizer ended it than the step before.")]


class GpuInUse(Document, frozen=True, kw_only=True):
    """The GPU that a rank used."""

    name: Annotated[str, field("Its name.")]
    memory_bytes: Annotated[int, field("Its memory.")]
    count: Annotated[int, field("How many GPUs were visible.")]


class TraceEnd(Document, frozen=True, kw_only=True):
    """How the recording of a rank's trace ended."""

    state: Annotated[str, field("`recorded`, or why there is no complete trace.")]
    message: Annotated[str, field("The same in words.")]
    file: Annotated[str, field("The trace's file.")]


class HeldMemory(Document, frozen=True, kw_only=True):
    """What a training held, by the names of `documents.run.RunMemory`."""

    held: Annotated[dict[str, int], field("Bytes of tensors between two steps, by category.")]
    gradient_bytes: Annotated[int | None, field("Gradients at the end of a backward pass.")] = None
    free_bytes: Annotated[int | None, field("Free in the caching allocator at the end of the forward pass.")] = None
    largest_free_bytes: Annotated[int | None, field("The largest free block then.")] = None


class WarnedSyncs(Document, frozen=True, kw_only=True):
    """How often PyTorch warned of a sync (warned_syncs.json)."""

    by_step: Annotated[tuple[int, ...], field("In each of the watched steps.")]
    per_step: Annotated[float, field("The median of these.")]


class BatchTime(Document, frozen=True, kw_only=True):
    """What loading a batch was made of: a row of `documents.run.InputOfRun`."""

    wait_ns: Annotated[int, field("Host time spent in the loader's `__next__` for it.")]
    fetch_ns: Annotated[int, field("Time in the data set, for all samples of the batch.")]
    collate_ns: Annotated[int, field("Time in the collate function.")]
    pin_ns: Annotated[int | None, field("Time to copy it to pinned memory; null if the loader does not pin.")]
    copy_ns: Annotated[int | None, field("Time to copy it to the device; null on a CPU.")]
    worker: Annotated[int | None, field("Worker process that loaded it; null for the main process.")]


class GradientOutputs(Document, frozen=True, kw_only=True):
    """The gradients of one optimizer at the end of a step, as one vector."""

    optimizer: Annotated[str, field("Name of its class.")]
    values: Annotated[int, field("How many values the vector has.")]
    formats: Annotated[tuple[str, ...], field("Their number formats.")]
    norm: Annotated[float, field("Euclidean norm of the vector.")]
    depth: Annotated[int, field("How many of its parameters are matrices, or have more dimensions.")]
    terms: Annotated[int, field("The most terms that one of these sums up.")]
    projections: Annotated[tuple[float, ...], field("Products of the vector with random vectors of signs.")]


class StepOutputs(Document, frozen=True, kw_only=True):
    """What a step computed, for a check of the answer."""

    loss: Annotated[float | None, field("The sum of its losses; null where its backward passes start from none.")]
    formats: Annotated[tuple[str, ...], field("Number formats of losses and gradients, and of autocast.")]
    samples: Annotated[int | None, field("Samples in its batches; null without a loader that says it.")]
    depth: Annotated[int, field("Matrices among the parameters of all optimizers.")]
    terms: Annotated[int, field("The most terms that one of these sums up.")]
    gradients: Annotated[tuple[GradientOutputs, ...], field("Gradients of each optimizer.")]


class RankRecord(File, frozen=True, kw_only=True):
    """What one rank's process leaves: its steps and what it is, and by mode what was measured or followed.

    The file is `rankN.json` in the probe's folder. It may hold NaN, so it is read by the standard library.
    """

    rank: Annotated[int, field("Its number.")]
    world_size: Annotated[int, field("How many ranks there are.")]
    cwd: Annotated[str | None, field("Its working directory; null if the program has removed it.")]
    python: Annotated[str, field("Version of Python.")]
    torch: Annotated[str, field("Version of PyTorch.")]
    cuda: Annotated[str | None, field("PyTorch's version of CUDA.")]
    state: Annotated[Literal["partial", "complete", "failed"], field("How far the measurement got.")] = "complete"
    error: Annotated[str | None, field("Of a failed one: the traceback of the error in steptrace.")] = None
    steps_seen: Annotated[int, field("Steps in all.")] = 0
    optimizers: Annotated[tuple[tuple[str, int], ...], field("Each optimizer's name, and its steps in all.")] = ()
    rows: Annotated[tuple[MeasuredStep, ...], field("The measured steps, in their order.")] = ()
    operators: Annotated[tuple[int, ...], field("Operators of each of the warm-up's last steps.")] = ()
    gpu: Annotated[GpuInUse | None, field("The GPU in use; null without one.")] = None
    clock: Annotated[str, field("What timed the steps.")] = "monotonic"
    notes: Annotated[tuple[Note, ...], field("What to read with care.")] = ()
    nvml: Annotated[NvmlMeans | None, field("NVML's figures during the timed steps; null without any.")] = None
    peak_allocated_bytes: Annotated[int | None, field("Highest of the whole training.")] = None
    peak_reserved_bytes: Annotated[int | None, field("Highest of the whole training.")] = None
    trace: Annotated[TraceEnd | None, field("How its recording ended; null where none was begun.")] = None
    memory: Annotated[HeldMemory | None, field("What it held; null where it was not counted.")] = None
    prediction: Annotated[Prediction | None, field("What was followed, of a prediction.")] = None
    outputs: Annotated[tuple[StepOutputs, ...], field("What each step computed, for a check of the answer.")] = ()
    op_lines: Annotated[tuple[OpLine, ...], field("Operators of the watched steps; rank 0 alone has them.")] = ()
    sources: Annotated[dict[str, str] | None, field("Text of each file that these name; null where none is.")] = None
    warned_syncs: Annotated[WarnedSyncs | None, field("PyTorch's warnings of syncs; null without a GPU.")] = None
    sections: Annotated[tuple[SectionOfRun, ...], field("Of a study's own pass: times of the sections.")] = ()
    input_batches: Annotated[tuple[BatchTime, ...], field("Of a study's own pass: times of loading each batch.")] = ()
    batch_bytes: Annotated[dict[str, int] | None, field("Bytes of the tensors in a batch, by part.")] = None
    communication: Annotated[Communication | None, field("What the ranks tell each other; null with one.")] = None
    compiled: Annotated[Compilations | None, field("What torch.compile did; null where nothing was compiled.")] = None
