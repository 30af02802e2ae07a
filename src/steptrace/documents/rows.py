"""Rows of tables as they stand in summary.json: each class names its table in `ROWS`, which says what a column means.

A test holds the fields against the table's columns: same names, types, and nulls.
"""

import msgspec

from steptrace.documents.base import Document


class QualityCheck(Document, frozen=True):
    """A row of `quality_checks`."""

    check: str
    found: int
    of: int
    warns: bool
    says: str


class TemporalRow(Document, frozen=True):
    """A row of `temporal`."""

    rank: int | None
    device: int
    step: int | None
    index: int | None
    start_ns: int
    span_ns: int
    busy_ns: int
    compute_ns: int
    comm_ns: int
    memory_ns: int
    exposed_comm_ns: int
    exposed_memory_ns: int
    comm_compute_overlap_ns: int
    idle_ns: int


class StreamIdle(Document, frozen=True):
    """A row of `idle_by_stream`."""

    device: int
    stream: int
    host_wait_ns: int
    kernel_wait_ns: int
    other_ns: int


class IdleEnding(Document, frozen=True):
    """A row of `idle_endings`."""

    cause: str
    op: str | None
    label: str | None
    gaps: int
    idle_ns: int
    longest_ns: int


class IdleGap(Document, frozen=True):
    """A row of `idle_gaps`."""

    ts: int
    dur: int
    cause: str
    kernel: int
    name: str
    stream: int
    launch: int | None
    launched_after_ns: int | None
    op: str | None
    label: str | None
    step: int | None


class KernelName(Document, frozen=True):
    """A row of `kernel_names`."""

    name: str
    short_name: str
    class_: str = msgspec.field(name="class")
    count: int
    sum_ns: int
    mean_ns: float
    median_ns: float
    min_ns: int
    max_ns: int
    std_ns: float | None
    share: float


class KernelType(Document, frozen=True):
    """A row of `kernel_types`."""

    classes: str
    ns: int
    busy_share: float


class LaunchCall(Document, frozen=True):
    """A row of `launch_calls`."""

    call: str
    kind: str
    count: int
    activities: int
    host_ns: int
    host_median_ns: float
    device_ns: int
    device_median_ns: float
    delay_ns: int
    queueing_ns: int
    dependency_ns: int
    latency_ns: int
    latency_median_ns: float
    short_kernels: int
    slow_launches: int
    excess_delays: int


class Queue(Document, frozen=True):
    """A row of `queues`."""

    device: int
    stream: int
    activities: int
    unlinked: int
    span_ns: int
    mean: float | None
    median: int | None
    p95: int | None
    max: int
    empty_ns: int
    full_ns: int


class Copy(Document, frozen=True):
    """A row of `copies`."""

    device: int
    kind: str
    count: int
    unsized: int
    bytes: int | None
    ns: int
    mean_bytes_per_second: float | None
    median_bytes_per_second: float | None
    max_bytes_per_second: float | None
    median_bytes: float | None


class Label(Document, frozen=True):
    """A row of `annotation_times`."""

    label: str
    count: int
    host_ns: int
    host_self_ns: int
    kernels: int | None
    device_ns: int | None
    device_self_ns: int | None


class OptimizerCall(Document, frozen=True):
    """A row of `optimizer_calls`."""

    label: str
    method: str
    optimizer: str
    count: int
    host_ns: int
    operators: int
    foreach: int
    fused: int
    zeroing: int
    most_common: str | None
    most_common_count: int
    single_tensor: int
    kernels: int | None
    device_ns: int | None


class InputWaitOfStep(Document, frozen=True):
    """A row of `input_waits`."""

    step: int | None
    index: int | None
    host_ns: int
    waits: int
    wait_ns: int
    gpu_idle_wait_ns: int | None


class AtPeak(Document, frozen=True):
    """A row of `memory_at_peak`."""

    category: str
    op: str | None
    label: str | None
    phase: str | None
    file: str | None
    line: int | None
    function: str | None
    code: str | None
    blocks: int | None
    bytes: int


class TopOperator(Document, frozen=True):
    """A row of `top_operators`."""

    name: str | None
    calls: int | None
    host_self_ns: int | None
    device_self_ns: int | None
    share: float


class KernelFormat(Document, frozen=True):
    """A row of `kernel_formats`."""

    name: str
    short_name: str
    bits: str
    by: str | None
    tensor_core: str
    eligible: bool
    tf32: bool
    count: int
    ns: int


class RankWait(Document, frozen=True):
    """A row of `rank_waits`."""

    rank: int
    clock_offset_ns: int | None
    clock_spread_ns: int | None
    collectives: int
    matched: int
    last: int
    wait_ns: int | None
    caused_ns: int | None
    delay_ns: int | None


class RankKernel(Document, frozen=True):
    """A row of `rank_kernels`."""

    name: str
    short_name: str
    class_: str = msgspec.field(name="class")
    ranks: int
    count: int
    sum_ns: int
    sum_min_ns: int
    sum_median_ns: float
    sum_max_ns: int
    mean_min_ns: float
    mean_median_ns: float
    mean_max_ns: float
    slowest_rank: int
