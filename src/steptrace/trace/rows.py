"""The rows of a trace's tables, as the reader and the linker make them.

Times are ns since the first event of the trace. A column declared by `reference` holds row numbers of another table, or
of the same; `trace.model.check` holds them to its length.
"""

from typing import Annotated, Final

from steptrace.documents.base import Document, field, key, reference

_Ts = Annotated[int, field("Start.")]
_Dur = Annotated[int, field("Length.")]
_Thread = Annotated[int, reference("threads", "where the host ran it.")]
_Step = Annotated[int | None, reference("steps", "the training step it belongs to, null outside them.")]


class ThreadRow(Document, frozen=True):
    """One host thread of a trace."""

    pid: Annotated[str, key("", "Process id as written.")]
    tid: Annotated[str, key("", "Thread id as written.")]
    name: Annotated[str | None, field("Thread name, if the trace gives one.")]
    training: Annotated[
        bool, field("Whether it does training work: it carries the steps, or runs their backward pass.")
    ]


class StepRow(Document, frozen=True):
    """One training step, marked by the profiler's `ProfilerStep#N` label on the host."""

    index: Annotated[int, field("The N of `ProfilerStep#N`.")]
    ts: _Ts
    dur: Annotated[int, field("Length, up to the end of the last GPU work launched in the step.")]
    host_dur: Annotated[int, field("Length of the host's label alone.")]
    thread: _Thread


class OpRow(Document, frozen=True):
    """One operator that ran on the host (`cpu_op`)."""

    ts: _Ts
    dur: _Dur
    thread: _Thread
    name: Annotated[str, field("Operator name, such as `aten::index`.")]
    external_id: Annotated[int | None, field("The profiler's id, repeated on the launches it made.")]
    sequence: Annotated[int | None, field("Autograd sequence number, shared by an op and its backward.")]
    types: Annotated[str, field("Types of its inputs as the trace has them, a JSON list; `null` where it has none.")]
    sizes: Annotated[str, field("The same of their sizes.")]
    strides: Annotated[str, field("The same of their strides.")]
    settings: Annotated[str, field("The same of a convolution's other arguments, such as `[2, 2]` for its strides.")]
    backward: Annotated[bool, field("Whether it runs in the backward pass.")]
    parent: Annotated[int | None, reference("ops", "the operator that called it.")]
    forward: Annotated[int | None, reference("ops", "the forward operator that a backward one belongs to.")]
    label: Annotated[int | None, reference("labels", "the innermost label around it.")]
    frame: Annotated[int | None, reference("frames", "the innermost Python frame around it.")]
    step: _Step


class LaunchRow(Document, frozen=True):
    """One host call into the GPU's runtime or driver; most launch GPU work, some wait for it, some only ask."""

    ts: _Ts
    dur: _Dur
    thread: _Thread
    name: Annotated[str, field("Call, such as `cudaLaunchKernel`, without version suffix.")]
    correlation: Annotated[int | None, field("Id that the GPU work it caused repeats.")]
    external_id: Annotated[int | None, field("Id of the operator it was made under, by the profiler.")]
    op: Annotated[int | None, reference("ops", "the innermost operator around it.")]
    step: _Step


class KernelRow(Document, frozen=True):
    """One activity of a GPU: a kernel, a copy (memcpy) or a memory set (memset)."""

    ts: _Ts
    dur: _Dur
    device: Annotated[int, field("GPU it ran on.")]
    stream: Annotated[int, field("Stream it ran on.")]
    name: Annotated[str, field("Name as recorded.")]
    category: Annotated[str, field("`kernel`, `memcpy` or `memset`.")]
    kind: Annotated[str, field("`compute`, `comm` (collectives) or `memory` (memcpy and memset).")]
    correlation: Annotated[int | None, field("Id of the launch that caused it.")]
    launch: Annotated[int | None, reference("launches", "the call that caused it; one may cause many.")]
    step: _Step
    bytes: Annotated[int | None, field("Bytes moved or set.")]
    blocks_per_sm: Annotated[float | None, field("Thread blocks per multiprocessor of the GPU.")]
    annotation: Annotated[str | None, field("The program's name for it while its CUDA graph was captured.")]


class CollectiveRow(Document, frozen=True):
    """One GPU activity of a collective, with what PyTorch says of it."""

    kernel: Annotated[int, reference("kernels", is_key=True)]
    name: Annotated[str | None, field("`all_reduce`, `all_gather`, ...; null where neither args nor names say it.")]
    group: Annotated[str | None, field("Name of the process group.")]
    group_ranks: Annotated[str | None, field("Ranks of the process group, as written.")]
    group_size: Annotated[int | None, field("Number of ranks of the process group.")]
    sequence: Annotated[int | None, field("Number of the collective within its process group.")]
    dtype: Annotated[str | None, field("Element type as PyTorch calls it.")]
    in_elements: Annotated[int | None, field("Elements this rank gives.")]
    out_elements: Annotated[int | None, field("Elements this rank gets.")]
    in_split: Annotated[str | None, field("Of an all-to-all the elements for each rank, as written.")]
    from_rank: Annotated[int | None, field("Of a receive the rank that sends, as PyTorch numbers it.")]
    from_ranks: Annotated[
        str | None, field("Of a batch of sends and receives the ranks that it receives from, separated by commas.")
    ]


class SyncRow(Document, frozen=True):
    """One host sync: the host goes on only once queued GPU work is complete."""

    ts: _Ts
    dur: Annotated[int, field("From the start of its first call to the end of its last.")]
    thread: _Thread
    kind: Annotated[str, field("`d2h_copy`, `h2d_copy`, or the name of the waiting call.")]
    blocked_ns: Annotated[int, field("Host time within its calls.")]
    launch: Annotated[int, reference("launches", "its first call.")]
    op: Annotated[int | None, reference("ops", "the innermost operator around it.")]
    step: _Step
    counted: Annotated[bool, field("Whether it counts: on a training thread, and in a step if the trace has any.")]


class FrameRow(Document, frozen=True):
    """One call of a Python function (`python_function`; traces recorded with stacks only)."""

    ts: _Ts
    dur: _Dur
    thread: _Thread
    name: Annotated[str, field("As recorded: `file(line of the def): function`, or a pseudo-frame.")]
    parent: Annotated[int | None, reference("frames", "the calling frame.")]


class LabelRow(Document, frozen=True):
    """One labelled part of the program (`record_function`, `user_annotation`)."""

    ts: _Ts
    dur: _Dur
    thread: _Thread
    name: Annotated[str, field("The label.")]
    parent: Annotated[int | None, reference("labels", "the label around it.")]
    bytes: Annotated[int | None, field("What a host's collective is given, by PyTorch's label for it.")]
    step: _Step


class MemoryRow(Document, frozen=True):
    """One allocation (positive bytes) or release (negative) by PyTorch's allocators."""

    ts: _Ts
    thread: _Thread
    device_type: Annotated[int, field("0 is the host, 1 a CUDA or ROCm device.")]
    device: Annotated[int | None, field("Index of the device, null for the host.")]
    address: Annotated[int | None, field("Address of the block.")]
    bytes: Annotated[int, field("Bytes allocated, negative when released.")]
    allocated: Annotated[int | None, field("Bytes allocated on the device after it.")]
    reserved: Annotated[int | None, field("Bytes reserved from the device after it.")]


#: The tables of a trace by name, and their kinds of rows.
TABLES: Final[dict[str, type[Document]]] = {
    "threads": ThreadRow,
    "steps": StepRow,
    "ops": OpRow,
    "launches": LaunchRow,
    "kernels": KernelRow,
    "collectives": CollectiveRow,
    "syncs": SyncRow,
    "frames": FrameRow,
    "labels": LabelRow,
    "memory": MemoryRow,
}
