"""run.json, status.json, communication.json, memory.json: what one run leaves behind besides its tables.

And what is read again of a capture.json, the record that `steptrace.engine.recording` writes beside a trace.
Unmeasured is null.
"""

from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from steptrace.documents.base import Document, File, field
from steptrace.documents.column import column

#: How a run can end.
RunStatus = Literal["ok", "failed", "out of memory", "killed"]


class Environment(Document, frozen=True):
    """Where a run took place."""

    host: Annotated[str, field("Name of the machine.")]
    os: Annotated[str, field("Operating system.")]
    cpu: Annotated[str, field("Processor.")]
    cpu_count: Annotated[int, field("Cores that the run may use.")]
    memory_bytes: Annotated[int, field("Memory of the machine.")]
    gpu: Annotated[str | None, field("Name of the GPU.")]
    gpu_count: Annotated[int, field("Visible GPUs.")]
    gpu_memory_bytes: Annotated[int | None, field("Memory of the GPU.")]
    driver: Annotated[str | None, field("Version of the GPU's driver.")]
    cuda: Annotated[str | None, field("CUDA version of PyTorch.")]
    python: Annotated[str, field("Version of Python.")]
    torch: Annotated[str, field("Version of PyTorch.")]
    steptrace: Annotated[str, field("Version of steptrace.")]
    git_commit: Annotated[
        str | None, field("Commit of the measured code: of a program's folder, else of the working directory.")
    ]
    git_dirty: Annotated[bool | None, field("Whether it had uncommitted changes.")]


def is_simulated(gpu: str | None) -> bool:
    """Whether this is the name of the stand-in for a GPU (tests/standin), whose times and values are no results."""
    return gpu is not None and "stand-in" in gpu


#: What a supervised process prints, beside its status.json.
LOG_FILE: Final = "train.log"


class Status(File, frozen=True, kw_only=True):
    """How a supervised process ended (status.json)."""

    status: Annotated[RunStatus, field("`killed`: by a signal from outside, or the kernel.")]
    exit_code: Annotated[int | None, field("Exit code.")]
    signal: Annotated[int | None, field("Signal that ended it.")]
    error: Annotated[str | None, field("The error in one line.")]
    log_tail: Annotated[tuple[str, ...], field("The end of its log.")]
    started_at: Annotated[str, field("When it started (ISO 8601).")]
    wall_s: Annotated[float, field("How long it ran, in seconds.")]
    key: Annotated[
        str,
        field("Digests of the configuration and code that it ran, and when an earlier try failed; empty if not given."),
    ] = ""


class RunRecord(File, frozen=True, kw_only=True):
    """One repeat of one variant (run.json). Step times stand in steps.parquet beside it."""

    study: Annotated[str, field("Name of the study.")]
    variant: Annotated[str, field("Name of the variant.")]
    repeat: Annotated[int, field("Number of the repeat, from 0.")]
    seed: Annotated[int, field("Seed.")]
    world_size: Annotated[int, field("Ranks.")]
    digest: Annotated[str, field("Digest of the variant's configuration.")]
    scale: Annotated[str, field("Scale that it ran at.")]
    device: Annotated[str, field("Kind of device: `cpu` or `cuda`.")]
    clock: Annotated[str, field("What timed the steps.")]
    environment: Annotated[Environment, field("Where it ran.")]
    peak_allocated_bytes: Annotated[int | None, field("Highest of the whole training.")]
    peak_reserved_bytes: Annotated[int | None, field("Highest of the whole training.")]
    nvml: Annotated[dict[str, float] | None, field("NVML's figures of the GPU during the timed steps.")]
    traces: Annotated[tuple[str, ...], field("The trace files, one a rank.")]
    config: Annotated[dict[str, Any], field("The composed configuration.")]
    warnings: Annotated[tuple[str, ...], field("What was asked for and could not be measured, a sentence each.")] = ()
    batch_bytes: Annotated[dict[str, int] | None, field("One batch's `inputs` and `targets` on the device.")] = None


class Communication(File, frozen=True, kw_only=True):
    """What the ranks of a run have to tell each other, and how fast they can (communication.json)."""

    world_size: Annotated[int, column("Ranks", "Ranks; their step time is the slowest one's, step by step.")]
    backend: Annotated[str, column("Backend", "Backend of torch.distributed.")]
    parameters: Annotated[int, column("Parameters", "Parameters with a gradient.")]
    parameter_bytes: Annotated[int, column("Gradients", "Bytes of all gradients.")]
    bucket_bytes: Annotated[
        tuple[int, ...] | None,
        field("Of PyTorch's buckets of gradients: as many all-reduces a step, without accumulation."),
    ]
    bus_bytes_per_s: Annotated[
        float,
        column(
            "Bus bandwidth",
            "Message size × 2(n−1)/n ÷ median time of the slowest rank, all-reduces alone, for all gradients' size: "
            "the rate at which each rank must send, whatever their number.",
        ),
    ]
    expected_ns: Annotated[
        int,
        column(
            "Expected",
            "One all-reduce of all gradients: parameter bytes × 2(n−1)/n ÷ bus bandwidth.",
        ),
    ]
    simplified_ns: Annotated[int, column("Simpler formula", "The same as parameters × 4 ÷ bandwidth.")]


class RunMemory(File, frozen=True, kw_only=True):
    """The memory of a run: its capacity, and what held it."""

    device: Annotated[str, field("`cpu` or `cuda`.")]
    batch_size: Annotated[int, field("Batch size.")]
    capacity_bytes: Annotated[int, field("Memory of the device, or the limit that was set.")]
    capacity_source: Annotated[str, field("`limit` (scale.memory_limit_mb), `device` or `machine`.")]
    held: Annotated[dict[str, int], field("Bytes of tensors between two steps, by category.")]
    gradient_bytes: Annotated[int | None, field("Gradients of the parameters at the end of a backward pass.")] = None
    free_bytes: Annotated[
        int | None, field("Free in the caching allocator at the end of the forward pass; a CPU has none.")
    ] = None
    largest_free_bytes: Annotated[int | None, field("The largest free block then.")] = None

    @property
    def fragmentation(self) -> float | None:
        """1 - largest free block / free bytes of the caching allocator; None without one, or with nothing free."""
        if not self.free_bytes or self.largest_free_bytes is None:
            return None
        return 1 - self.largest_free_bytes / self.free_bytes


_END: Final = ".json.gz"


class Unprofiled(msgspec.Struct, frozen=True):
    """The unprofiled steps before a trace, in ns, and the machine's load average with its number of CPUs.

    `operators` are those of each of the steps just before them, where they were counted; `until_recorded` is how many
    steps lie between them and the first recorded one.
    """

    median_ns: int
    step_ns: list[int]
    load_average: float
    cpus: int
    operators: tuple[int, ...] = ()
    until_recorded: int | None = None


class Capture(msgspec.Struct, frozen=True):
    """A trace's record; `unprofiled` is None where no steps were timed before it."""

    unprofiled: Unprofiled | None


def capture_of(trace: Path) -> Capture | None:
    """The record beside a trace; None without one that can be read, as any file may have its name."""
    name = f"{trace.name.replace('trace', 'capture', 1).removesuffix(_END)}.json"
    try:
        content = trace.with_name(name).read_bytes() if trace.name.endswith(_END) and "trace" in trace.name else b""
        return msgspec.json.decode(content, type=Capture)
    except (OSError, ValueError):
        return None
