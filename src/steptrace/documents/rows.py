"""Rows of a trace's tables as they stand in summary.json; `table_of` makes of such rows the declaration of a table."""

from typing import Annotated

import msgspec

from steptrace.documents.base import Document, field
from steptrace.documents.column import columns_of as declared_columns
from steptrace.documents.column import keys_of
from steptrace.schema import Column, Table


def table_of(name: str, kind: type[Document], *key: str) -> Table:
    """The table whose rows are of this kind, which says what a row is.

    `key` names the columns that identify one where the kind declares no keys.
    """
    declared = tuple(column.name for column in keys_of(kind))
    return Table(name, kind.__doc__ or "", *columns_of(kind), key=key or declared)


def columns_of(kind: type[Document]) -> tuple[Column, ...]:
    """The columns of a table whose rows are of this kind."""
    return tuple(Column(c.name, c.dtype or "", c.meaning, c.unit, c.nullable) for c in declared_columns(kind))


class QualityCheck(Document, frozen=True):
    """One thing that can be wrong with a trace, and how much of it is."""

    check: Annotated[str, field("What was looked for.")]
    found: Annotated[int, field("How many are wrong.")]
    of: Annotated[int, field("Of how many.")]
    warns: Annotated[bool, field("Whether that is enough to warn of.")]
    says: Annotated[str, field("The warning, or that all is well.")]


class TemporalRow(Document, frozen=True):
    """Where one GPU's time went in one step, or (`step` null) from its first to its last activity.

    `compute_ns`, `exposed_comm_ns`, `exposed_memory_ns` and `idle_ns` add up to `span_ns` exactly.
    """

    rank: Annotated[int | None, field("Rank of the trace, null if it does not say.")]
    device: Annotated[int, field("GPU.")]
    step: Annotated[int | None, field("Row of `steps`; null for the whole trace.")]
    index: Annotated[int | None, field("The N of `ProfilerStep#N`; null for the whole trace.")]
    start_ns: Annotated[int, field("Start of the span.", "ns")]
    span_ns: Annotated[int, field("Length of the span: of a step, up to the end of the last work it launched.", "ns")]
    busy_ns: Annotated[int, field("Time with any activity.", "ns")]
    compute_ns: Annotated[int, field("Time with a compute kernel.", "ns")]
    comm_ns: Annotated[int, field("Time with a collective's kernel, hidden or not.", "ns")]
    memory_ns: Annotated[int, field("Time with a memcpy or memset, hidden or not.", "ns")]
    exposed_comm_ns: Annotated[int, field("Time with a collective's kernel and no compute kernel.", "ns")]
    exposed_memory_ns: Annotated[int, field("Time with a memcpy or memset and no kernel.", "ns")]
    comm_compute_overlap_ns: Annotated[int, field("Time with a collective's and a compute kernel.", "ns")]
    idle_ns: Annotated[int, field("Time without any activity.", "ns")]


class StreamIdle(Document, frozen=True):
    """The gaps before the activities of one stream, summed by category."""

    device: Annotated[int, field("GPU.")]
    stream: Annotated[int, field("Stream.")]
    host_wait_ns: Annotated[int, field("Before work launched after the previous one had ended.", "ns")]
    kernel_wait_ns: Annotated[int, field("Of the others, gaps under 30 us.", "ns")]
    other_ns: Annotated[int, field("The rest.", "ns")]


class IdleEnding(Document, frozen=True):
    """The gaps of one cause that activities of one operator ended."""

    cause: Annotated[str, field("`sync`, `loader`, `host`, `dependency` or `unknown`.")]
    op: Annotated[str | None, field("The operator whose work ended them.")]
    label: Annotated[str | None, field("The innermost label that launched it.")]
    gaps: Annotated[int, field("How many.")]
    idle_ns: Annotated[int, field("Their summed length.", "ns")]
    longest_ns: Annotated[int, field("The longest.", "ns")]


class IdleGap(Document, frozen=True):
    """One gap between two activities of a GPU, all its streams taken together, with its cause and what ended it."""

    ts: Annotated[int, field("Start of the gap.", "ns")]
    dur: Annotated[int, field("Length.", "ns")]
    cause: Annotated[str, field("`sync`, `loader`, `host`, `dependency` or `unknown`.")]
    kernel: Annotated[int, field("Row of `kernels`: the activity that ended it.")]
    name: Annotated[str, field("Short name of that activity.")]
    stream: Annotated[int, field("Stream it ran on.")]
    launch: Annotated[int | None, field("Row of `launches`: the call that caused it.")]
    launched_after_ns: Annotated[int | None, field("From the gap's start to the start of that call.", "ns")]
    op: Annotated[str | None, field("The operator that made the call.")]
    label: Annotated[str | None, field("The innermost label that the call was made in.")]
    step: Annotated[int | None, field("Row of `steps`: the step that launched it.")]


class KernelName(Document, frozen=True):
    """The activities of one GPU of one name. Lengths are added over streams: work side by side counts on each."""

    name: Annotated[str, field("Name as recorded.")]
    short_name: Annotated[
        str, field("Name as a person would say it; what tells it from the table's others of the same.")
    ]
    class_: Annotated[str, field("`compute`, `comm` (collectives) or `memory` (memcpy and memset).")] = msgspec.field(
        name="class"
    )
    count: Annotated[int, field("Activities.")]
    sum_ns: Annotated[int, field("Sum of their lengths.", "ns")]
    mean_ns: Annotated[float, field("Mean length.", "ns")]
    median_ns: Annotated[float, field("Median length.", "ns")]
    min_ns: Annotated[int, field("Shortest.", "ns")]
    max_ns: Annotated[int, field("Longest.", "ns")]
    std_ns: Annotated[float | None, field("Standard deviation of the sample; null for one activity.", "ns")]
    share: Annotated[float, field("Of the summed lengths of all activities, 0 to 1.")]


class KernelType(Document, frozen=True):
    """How long exactly this set of classes ran on a GPU at once; the rows add up to its busy time exactly."""

    classes: Annotated[str, field("The classes, joined by ` + `: `compute`, `comm + memory`, and so on.")]
    ns: Annotated[int, field("Time in which these ran and no others.", "ns")]
    busy_share: Annotated[float, field("Of the GPU's busy time, 0 to 1.")]


class KernelFormat(Document, frozen=True):
    """The compute kernels of one GPU of one name: the number format of their arithmetic and whether it runs on tensor
    cores. Lengths are added over streams."""

    name: Annotated[str, field("Name as recorded.")]
    short_name: Annotated[
        str, field("Name as a person would say it; what tells it from the table's others of the same.")
    ]
    bits: Annotated[str, field("`bits8` (and narrower), `bits16`, `bits32`, `bits64`, `integer` or `unknown`.")]
    by: Annotated[str | None, field("Where that is known from: the kernel's `name` or its operator's input `types`.")]
    tensor_core: Annotated[str, field("Whether it runs on tensor cores: `yes`, `no` or `unknown`.")]
    eligible: Annotated[bool, field("Whether its arithmetic is such as tensor cores do.")]
    tf32: Annotated[bool, field("Whether its products are in TF32.")]
    count: Annotated[int, field("Kernels.")]
    ns: Annotated[int, field("Sum of their lengths.", "ns")]


class TopOperator(Document, frozen=True):
    """The operators of one name, by their own time: the GPU's where there is one, else the host's."""

    name: Annotated[str | None, field("Operator; null for GPU work that none launched.")]
    calls: Annotated[int | None, field("Calls (in a comparison of a step, null below one); null without an operator.")]
    host_self_ns: Annotated[
        int | None, field("Host time without the operators and calls inside; null without an operator.", "ns")
    ]
    device_self_ns: Annotated[
        int | None,
        field("Length of the GPU work that it launched and no operator inside it; null without a GPU.", "ns"),
    ]
    share: Annotated[float, field("Of all GPU time, or, without a GPU, of all operators' own host time; 0 to 1.")]


class LaunchCall(Document, frozen=True):
    """The launches of one GPU by one call."""

    call: Annotated[str, field("Name of the call.")]
    kind: Annotated[str, field("`kernel`, `graph`, `copy` or `set`.")]
    count: Annotated[int, field("Launches.")]
    activities: Annotated[int, field("GPU activities they caused.")]
    host_ns: Annotated[int, field("Summed length of the calls.", "ns")]
    host_median_ns: Annotated[float, field("Median length of a call.", "ns")]
    device_ns: Annotated[int, field("Summed time of their work.", "ns")]
    device_median_ns: Annotated[float, field("Median time of a launch's work.", "ns")]
    delay_ns: Annotated[int, field("Summed delay.", "ns")]
    queueing_ns: Annotated[int, field("Summed queueing.", "ns")]
    dependency_ns: Annotated[int, field("Summed waiting for events.", "ns")]
    latency_ns: Annotated[int, field("Summed launch latency.", "ns")]
    latency_median_ns: Annotated[float, field("Median launch latency.", "ns")]
    short_kernels: Annotated[int, field("Launches whose work takes less time than the call.")]
    slow_launches: Annotated[int, field("Calls that took more than 50 us.")]
    excess_delays: Annotated[int, field("Launches with more than 100 us of launch latency.")]


class Copy(Document, frozen=True):
    """The copies (or sets) of one kind on one GPU; rates are weighted by time while any of them runs."""

    device: Annotated[int, field("GPU.")]
    kind: Annotated[str, field("The copy as recorded, or `Memset`.")]
    count: Annotated[int, field("How many.")]
    unsized: Annotated[int, field("Of these, how many say no bytes or took no time: no part of the rates.")]
    bytes: Annotated[int | None, field("Bytes moved, of those that say; null where none does.", "B")]
    ns: Annotated[int, field("Time with any of them running, each instant once.", "ns")]
    mean_bytes_per_second: Annotated[float | None, field("Rate over the time that any that says its bytes ran.", "B/s")]
    median_bytes_per_second: Annotated[float | None, field("Rate not exceeded half of that time.", "B/s")]
    max_bytes_per_second: Annotated[float | None, field("Highest rate at any instant.", "B/s")]
    median_bytes: Annotated[float | None, field("Median size of one.", "B")]


class Label(Document, frozen=True):
    """All user annotations of one label, with the GPU's time that belongs to them."""

    label: Annotated[str, field("The label; steps (`ProfilerStep#N`) are none.")]
    count: Annotated[int, field("How many, those inside one of their own label included.")]
    host_ns: Annotated[int, field("Host time in them, each instant of a thread once.", "ns")]
    host_self_ns: Annotated[int, field("Of that, outside other annotations within them.", "ns")]
    kernels: Annotated[int | None, field("GPU activities launched in them, annotations within included.")]
    device_ns: Annotated[int | None, field("Time the GPU was busy with these, each instant once.", "ns")]
    device_self_ns: Annotated[int | None, field("Of their work without annotations within.", "ns")]


class OptimizerCall(Document, frozen=True):
    """The calls of one method of one optimizer, by the label that PyTorch puts around each.

    Only operators called directly count, not those that they call.
    """

    label: Annotated[str, field("`Optimizer.step#SGD.step`, `Optimizer.zero_grad#Adam.zero_grad`, ...")]
    method: Annotated[str, field("`step` or `zero_grad`.")]
    optimizer: Annotated[str, field("Name of the optimizer's class.")]
    count: Annotated[int, field("Calls, those inside one of the same label left out.")]
    host_ns: Annotated[int, field("Host time in them, each instant of a thread once.", "ns")]
    operators: Annotated[int, field("Operators called.")]
    foreach: Annotated[int, field("Of these, on many tensors at once (`_foreach_`).")]
    fused: Annotated[int, field("Of these, a whole update in one (their name says fused).")]
    zeroing: Annotated[int, field("Of these, setting to zero (`zero_`, `_foreach_zero_`).")]
    most_common: Annotated[str | None, field("The operator called most often.")]
    most_common_count: Annotated[int, field("How often.")]
    single_tensor: Annotated[int, field("Python frames `_single_tensor_...`; 0 too where no frames are recorded.")]
    kernels: Annotated[int | None, field("GPU activities launched; null without a GPU.")]
    device_ns: Annotated[int | None, field("Time the GPU was busy with these, each instant once.", "ns")]


class InputWaitOfStep(Document, frozen=True):
    """How long training threads waited for data in one step, or in the whole of a trace without steps."""

    step: Annotated[int | None, field("Row of `steps`; null for a trace without steps.")]
    index: Annotated[int | None, field("The N of `ProfilerStep#N`; null for a trace without steps.")]
    host_ns: Annotated[int, field("Length of the step on the host, or of the trace.", "ns")]
    waits: Annotated[int, field("Waits that begin in it.")]
    wait_ns: Annotated[
        int, field("Time in them, whoever's wait it is; side by side on two threads it counts once.", "ns")
    ]
    gpu_idle_wait_ns: Annotated[
        int | None, field("Of that time, what the GPU had nothing to do in; null without a GPU.", "ns")
    ]


class AtPeak(Document, frozen=True):
    """A row of `memory_at_peak` or `memory_kept`."""

    category: Annotated[
        str,
        field(
            "`parameters`, `gradients`, `optimizer_state`, `activations`, `inputs`, `workspaces`, `temporary` or "
            "`unknown`."
        ),
    ]
    op: Annotated[str | None, field("Outermost operator around the allocation.")]
    label: Annotated[str | None, field("Innermost `record_function` label around it.")]
    phase: Annotated[str | None, field("Part of the step.")]
    file: Annotated[str | None, field("File of the first frame that is neither PyTorch's nor steptrace's.")]
    line: Annotated[int | None, field("Line in `file`; of backward work that of the forward operator.")]
    function: Annotated[str | None, field("Function that the line stands in.")]
    code: Annotated[str | None, field("Text of the line, where the file is known.")]
    blocks: Annotated[int | None, field("Number of blocks; null where only their sum is known.")]
    bytes: Annotated[int, field("Their bytes, summed.", "B")]
