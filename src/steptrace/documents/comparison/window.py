"""Of a variant: what its profiled windows say of time, input, number formats, memory and communication."""

from typing import Annotated, Literal

from steptrace.documents.base import Document, field
from steptrace.documents.kernels import Precision
from steptrace.documents.overview import TopOperator
from steptrace.documents.run import OutOfMemory

InputVerdict = Literal["none", "moderate", "high"]


class Breakdown(Document, frozen=True):
    """Mean profiled step in the GPU's parts."""

    compute: Annotated[float, field("Compute.", "ms")]
    exposed_comm: Annotated[float, field("Exposed communication.", "ms")]
    exposed_memory: Annotated[float, field("Exposed copies and sets.", "ms")]
    idle: Annotated[float, field("Idle.", "ms")]


class LoadingParts(Document, frozen=True):
    """Loading one batch by itself."""

    fetch: Annotated[float | None, field("Fetch, without the transform.", "ms")]
    transform: Annotated[float | None, field("Transform.", "ms")]
    collate: Annotated[float | None, field("Collate.", "ms")]
    pin: Annotated[float | None, field("Pin.", "ms")]
    copy: Annotated[float | None, field("Copy to the device.", "ms")]


class InputOfVariant(Document, frozen=True):
    """Waiting for data in unprofiled steps."""

    workers: Annotated[int | None, field("Worker processes of the loader, by the configuration.")]
    wait_ms: Annotated[float | None, field("Mean wait a step.", "ms")]
    counted_ms: Annotated[float | None, field("What of it counts: with the GPU idle.", "ms")]
    step_ms: Annotated[float | None, field("Mean step time.", "ms")]
    idle_part: Annotated[float | None, field("Share of the wait with the GPU idle.")]
    share: Annotated[float | None, field("What counts, as a share of the step time.")]
    verdict: Annotated[InputVerdict | None, field("How much that is.")]
    traced_share: Annotated[float | None, field("The same by the profiled window alone.")]
    breakdown_ms: Annotated[LoadingParts | None, field("One batch in parts.")]


class OverviewOfVariant(Document, frozen=True):
    """Where a profiled step goes."""

    kind: Annotated[Literal["gpu", "host"], field("Whose parts these are.")]
    step_ms: Annotated[float, field("Mean profiled step.", "ms")]
    parts_ms: Annotated[dict[str, float], field("Its parts; they add up to it.", "ms")]
    device_compute_share: Annotated[float | None, field("Share in which the GPU computed.")]
    operators: Annotated[tuple[TopOperator, ...], field("The operators with the most time of their own, of one step.")]


class PlacementOfVariant(Document, frozen=True):
    """Operators per step by where they ran."""

    ops_total: Annotated[float | None, field("All.")]
    ops_device: Annotated[float | None, field("On the GPU.")]
    ops_host: Annotated[float | None, field("On the host.")]
    ops_view: Annotated[float | None, field("Views and allocations.")]
    device_ns: Annotated[float | None, field("GPU time that operators launched.", "ns")]
    host_ns: Annotated[float | None, field("Host time of those on the host.", "ns")]
    view_ns: Annotated[float | None, field("Host time of views.", "ns")]


class PrecisionOfVariant(Document, frozen=True):
    """Number formats, as shares of kernel time."""

    kernel_share: Annotated[dict[str, float], field("By format.")]
    tf32_share: Annotated[float | None, field("In TF32 products.")]
    eligible_share: Annotated[float | None, field("Work that tensor cores could do.")]
    tensor_core_share: Annotated[float | None, field("Of that, on tensor cores.")]
    tensor_core_unknown_share: Annotated[float | None, field("Of that, not known.")]

    @classmethod
    def of_trace(cls, precision: Precision | None) -> "PrecisionOfVariant | None":
        """The shares of one trace; None without kernels."""
        total = sum(precision.kernel_ns.values()) if precision is not None else 0
        if precision is None or not total:
            return None
        eligible = precision.tensor_core_eligible_ns
        return cls(
            kernel_share={name: ns / total for name, ns in precision.kernel_ns.items()},
            tf32_share=precision.tf32_ns / total,
            eligible_share=eligible / total,
            tensor_core_share=precision.tensor_core_ns / eligible if eligible else None,
            tensor_core_unknown_share=precision.tensor_core_unknown_ns / eligible if eligible else None,
        )


class OutOfMemoryOfVariant(OutOfMemory, frozen=True):
    """How runs of a variant ran out of memory; the first of them."""

    runs: Annotated[tuple[int, ...], field("Repeats that ran out.")]
    of: Annotated[int, field("Of how many.")]


class MemoryOfVariant(Document, frozen=True):
    """The memory of a variant's profiled window; medians over the runs."""

    device_type: Annotated[str | None, field("`cpu` or `cuda`.")]
    batch_size: Annotated[int | None, field("Batch size.")]
    peak_allocated_bytes: Annotated[float | None, field("Allocated at the peak.", "B")]
    peak_reserved_bytes: Annotated[float | None, field("Most reserved.", "B")]
    before_bytes: Annotated[float | None, field("Held since before the window.", "B")]
    capacity_bytes: Annotated[float | None, field("What was to be had.", "B")]
    headroom_bytes: Annotated[float | None, field("Capacity less what was taken.", "B")]
    fragmentation: Annotated[float | None, field("1 - largest free block / free.")]
    capacity_source: Annotated[str | None, field("Who says the capacity.")]
    complete: Annotated[bool | None, field("Whether all that was held before is known.")]
    gradient_bytes: Annotated[float | None, field("Gradients at the end of backward.", "B")]
    by_category: Annotated[dict[str, float], field("Live at the peak.", "B")]
    curve: Annotated[tuple[tuple[int, int, int | None], ...] | None, field("One step: instant, allocated, reserved.")]
    peak_ts: Annotated[int | None, field("First instant of the peak.", "ns")]
    oom: Annotated[OutOfMemoryOfVariant | None, field("How it ran out.")]


class TriedMessage(Document, frozen=True):
    """The all-reduce of one message alone."""

    bytes: Annotated[int, field("Its size.", "B")]
    ms: Annotated[float | None, field("Time on the slowest rank.", "ms")]
    bus_bytes_per_s: Annotated[float | None, field("Bus bandwidth.", "B/s")]


class StragglerOfVariant(Document, frozen=True):
    """The rank that others wait for in every run."""

    rank: Annotated[int, field("Rank.")]
    share: Annotated[float, field("Median share of the waiting that it causes.")]
    runs: Annotated[int, field("Runs.")]


class CommunicationOfVariant(Document, frozen=True):
    """What the ranks of a training communicated; a step is an optimizer step."""

    world_size: Annotated[int, field("Ranks.")]
    backend: Annotated[str, field("Backend of torch.distributed.")]
    bucket_cap_mb: Annotated[float | None, field("DistributedDataParallel's bucket size.", "MB")]
    gradient_as_bucket_view: Annotated[bool | None, field("Its option.")]
    static_graph: Annotated[bool | None, field("Its option.")]
    no_sync: Annotated[bool | None, field("Whether passes before the last skip the reduction.")]
    comm_hook: Annotated[str | None, field("Its communication hook.")]
    accumulate: Annotated[int, field("Batches a step.")]
    parameters: Annotated[int, field("Parameters with a gradient.")]
    parameter_bytes: Annotated[int, field("Their bytes.", "B")]
    buckets: Annotated[int | None, field("Buckets of gradients.")]
    bucket_bytes: Annotated[tuple[int, ...] | None, field("Their sizes.", "B")]
    bus_bytes_per_s: Annotated[float | None, field("Measured bus bandwidth.", "B/s")]
    bandwidths: Annotated[tuple[TriedMessage, ...], field("Messages tried alone.")]
    expected_ms: Annotated[float | None, field("parameter bytes x 2(n-1)/n / bandwidth.", "ms")]
    simplified_ms: Annotated[float | None, field("parameters x 4 / bandwidth.", "ms")]
    measured_ms: Annotated[float | None, field("All-reduces a step, each instant once.", "ms")]
    measured_over_expected: Annotated[float | None, field("The ratio of the two.")]
    exposed_ms: Annotated[float | None, field("Not hidden by computation.", "ms")]
    overlap: Annotated[float | None, field("Share that computation hid.")]
    wait_ms: Annotated[float | None, field("Waiting for other ranks.", "ms")]
    bytes_per_step: Annotated[float | None, field("Bytes reduced.", "B")]
    all_reduces_per_step: Annotated[float | None, field("All-reduces a step.")]
    all_reduces_per_batch: Annotated[float | None, field("All-reduces a batch.")]
    straggler: Annotated[StragglerOfVariant | None, field("The rank others wait for in every run.")]
