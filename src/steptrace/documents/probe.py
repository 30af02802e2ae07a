"""What the probe leaves in a program's folder, as its readers take it.

The probe runs in the program's environment, where PyTorch and the standard library are all that there is. It writes
dataclasses of these names and fields; a test holds them against each other.
"""

from typing import Annotated

from steptrace.documents.base import Document, field
from steptrace.documents.estimate import OperatorCalls


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
