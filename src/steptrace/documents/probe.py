"""What the probe leaves in a program's folder, as its readers take it.

The probe runs in the program's environment, where PyTorch and the standard library are all that there is. It writes
dataclasses of these names and fields; a test holds them against each other.
"""

from typing import Annotated, Any, Literal

from steptrace.documents.base import Document, field
from steptrace.documents.estimate import OperatorCalls
from steptrace.documents.note import Note


class CountedPlace(Document, frozen=True, kw_only=True):
    """A place in the program, and how often something happened there over all followed steps."""

    op: Annotated[str, field("Operator.")]
    file: Annotated[str | None, field("File of the line; null where no line of the program is on the stack.")]
    line: Annotated[int | None, field("Line in it; of backward work that of the forward operator.")]
    function: Annotated[str | None, field("Function that the line stands in.")]
    code: Annotated[str | None, field("Text of the line.")]
    label: Annotated[str | None, field("Innermost `record_function` label.")]
    phase: Annotated[str, field("Part of the step.")]
    count: Annotated[int, field("How often, over all followed steps.")]
    reason: Annotated[str, field("Why it is listed.")]
    program_file: Annotated[str | None, field("Where that line is a library's: file of the program's line.")] = None
    program_line: Annotated[int | None, field("That line.")] = None
    by_step: Annotated[tuple[int, ...], field("How often in each step; empty where steps are not told apart.")] = ()


class Site(CountedPlace, frozen=True, kw_only=True):
    """A place that makes the host wait."""

    kind: Annotated[str, field("What waits: a copy, a stream, an event, the device.")]
    pinned: Annotated[bool | None, field("Of a copy to the device: whether the host's memory is pinned.")] = None


class StepBranch(Document, frozen=True, kw_only=True):
    """A line at which the program branches on a step counter."""

    file: Annotated[str, field("Its file.")]
    line: Annotated[int, field("Its line.")]
    every: Annotated[int, field("After so many steps it branches in the same way again.")]


class Prediction(Document, frozen=True, kw_only=True):
    """What was followed of one rank: all counts are over all followed steps together."""

    total: Annotated[int, field("Syncs, over all followed steps.")]
    sites: Annotated[tuple[Site, ...], field("Where they are.")]
    unknown: Annotated[tuple[CountedPlace, ...], field("Operations whose syncs could not be judged.")]
    operators_per_section: Annotated[dict[str, int], field("Operators that do work, by label, over all steps.")]
    operators: Annotated[int, field("Operators that do work, over all followed steps.")]
    assumed: Annotated[tuple[CountedPlace, ...], field("Where the program read what was not computed.")] = ()
    early_reads: Annotated[tuple[CountedPlace, ...], field("Where it read a copy that may be under way.")] = ()
    peak_memory_bytes: Annotated[int | None, field("The most bytes that the allocator held.")] = None
    batch_size: Annotated[int | None, field("Batch size of the config that was followed.")] = None
    operator_calls: Annotated[tuple[OperatorCalls, ...], field("Calls of operators, over all followed steps.")] = ()
    queue: Annotated[tuple[int, ...], field("Their order over all followed steps; -1 is a sync.")] = ()
    devices: Annotated[int, field("GPUs that train together.")] = 1
    tf32: Annotated[bool, field("Whether float32 products may be in TF32.")] = False
    tf32_convolutions: Annotated[bool, field("The same of convolutions.")] = True
    gpu: Annotated[str, field("The GPU that the program was told of.")]
    by_step: Annotated[tuple[int, ...], field("Syncs of each step; empty where steps are not told apart.")] = ()
    warmup_by_step: Annotated[tuple[int, ...], field("Syncs of each step before them.")] = ()
    branches: Annotated[tuple[StepBranch, ...], field("Where the program branches on a step counter.")] = ()


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


class RankRecord(Document, frozen=True, kw_only=True):
    """What one rank's process leaves: its steps and what it is, and by mode what was measured or followed."""

    rank: Annotated[int, field("Its number.")]
    world_size: Annotated[int, field("How many ranks there are.")]
    cwd: Annotated[str, field("Its working directory.")]
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
    nvml: Annotated[dict[str, float] | None, field("NVML's figures during the timed steps.")] = None
    peak_allocated_bytes: Annotated[int | None, field("Highest of the whole training.")] = None
    peak_reserved_bytes: Annotated[int | None, field("Highest of the whole training.")] = None
    trace: Annotated[TraceEnd | None, field("How its recording ended; null where none was begun.")] = None
    memory: Annotated[HeldMemory | None, field("What it held; null where it was not counted.")] = None
    prediction: Annotated[Prediction | None, field("What was followed, of a prediction.")] = None
    outputs: Annotated[
        tuple[dict[str, Any], ...], field("Loss and projected gradients of each step, for a check of the answer.")
    ] = ()
