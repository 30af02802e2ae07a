"""study.json, and the files of one run: run.json, status.json, communication.json, memory.json, and its tables.

Also the part of capture.json that is read again; `steptrace.engine.recording` writes it beside a trace. Unmeasured is
null.
"""

from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from steptrace.documents.base import Document, File, column, decode, field, key
from steptrace.documents.compilations import Compilations
from steptrace.documents.note import Note
from steptrace.files import read_bytes


class PlannedVariant(Document, frozen=True):
    """A variant that is to run."""

    name: Annotated[str, field("Its name; its folder's, too.")]
    overrides: Annotated[tuple[str, ...], field("Its difference to the baseline's configuration.")]
    hypothesis: Annotated[str | None, field("What its author expects.")]
    baseline: Annotated[str, field("The variant that it is compared with.")]
    digest: Annotated[str, field("Digest of its configuration.")]
    reference: Annotated[str | None, field("File of the configuration that its answer is held against.")] = None
    entry: Annotated[str | None, field("Its name in the study's file, which all cells of a matrix share.")] = None
    cell: Annotated[dict[str, str], field("What the matrix sets for it, by key; empty without a matrix.")] = (
        msgspec.field(default_factory=dict)
    )


class StudyDocument(File, frozen=True, kw_only=True):
    """The fields that every document on a study has."""

    title: Annotated[str, field("Its title.")]
    question: Annotated[str, field("What it asks.")]
    text: Annotated[str, field("What it is about.")]
    baseline: Annotated[str, field("The study's baseline.")]
    scale: Annotated[str, field("Scale that it runs at.")]


class SkippedVariant(Document, frozen=True, kw_only=True):
    """A variant of the study's file that does not run here, and why."""

    name: Annotated[str, field("The variant.")]
    reason: Annotated[
        Literal["other_scale", "package_missing"],
        field("It runs at other scales alone, or a Python package that it requires cannot be imported."),
    ]
    scales: Annotated[tuple[str, ...], field("The scales that it runs at; empty for another reason.")] = ()
    packages: Annotated[tuple[str, ...], field("The packages that are missing; empty for another reason.")] = ()


class Claim(Document, frozen=True, kw_only=True):
    """A number of kernels that the source of a study states."""

    says: Annotated[str, field("What it states.")]
    source: Annotated[str, field("Where it is stated.")]
    variant: Annotated[str, field("The variant that it is about.")]
    label: Annotated[str, field("The `record_function` label whose work is counted.")]
    kernels: Annotated[float, field("Kernels per step, as stated.")]


class PlannedStudy(StudyDocument, frozen=True, kw_only=True):
    """The content of study.json."""

    name: Annotated[str, field("Name of the study.")]
    repeats: Annotated[int, field("Runs of each variant.")]
    variants: tuple[PlannedVariant, ...]
    skipped: Annotated[tuple[SkippedVariant, ...], field("Variants of its file that do not run here.")] = ()
    claims: Annotated[tuple[Claim, ...], field("What its source states and can be counted.")] = ()


#: The checks of every variant.
Check = Literal["equivalence", "prediction"]
#: How a run can end.
RunStatus = Literal["ok", "failed", "out of memory", "killed"]
VariantStatus = Literal[RunStatus, "not run"]


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
        str | None, field("Commit of the measured code: that of the program's folder, or of the working directory.")
    ]
    git_dirty: Annotated[bool | None, field("Whether it had uncommitted changes.")]


def is_simulated(gpu: str | None) -> bool:
    """Whether this is the name of the stand-in for a GPU (tests/standin), whose times and values are no results."""
    return gpu is not None and "stand-in" in gpu


#: The file with the output of a supervised process, beside its status.json.
LOG_FILE: Final = "train.log"


class FileMark(Document, frozen=True):
    """The facts that show whether a file is still as it was written."""

    bytes: Annotated[int, field("Its size.")]
    modified_ns: Annotated[
        int, field("When it was last written, in ns since 1970; with the same size and time it is not read.")
    ]
    sha256: Annotated[str, field("SHA-256 of its content.")]


class Status(File, frozen=True, kw_only=True):
    """How a supervised process ended (status.json)."""

    status: Annotated[RunStatus, field("`killed`: by a signal from outside, or the kernel.")]
    exit_code: Annotated[int | None, field("Exit code.")]
    signal: Annotated[int | None, field("Signal that ended it.")]
    error: Annotated[str | None, field("The error in one line.")]
    log_tail: Annotated[tuple[str, ...], field("The end of its log.")]
    started_at: Annotated[str, field("When it started (ISO 8601).")]
    wall_s: Annotated[float, field("How long it ran, in seconds.")]
    key: Annotated[str, field("Digests of the configuration, code and versions that it ran; empty if not given.")] = ""
    attempt: Annotated[int, field("Number of the attempt; a retry is a new one.")] = 1
    files: Annotated[dict[str, FileMark], field("The files that it left, relative to its folder.")] = msgspec.field(
        default_factory=dict
    )


class ProcessError(Document, frozen=True):
    """How a process failed."""

    status: Annotated[str, field("`failed`, `out of memory`, `killed` or `not run`.")]
    exit_code: Annotated[int | None, field("Exit code.")]
    signal: Annotated[int | None, field("Signal that ended it.")]
    error: Annotated[str | None, field("The error in one line.")]
    log_tail: Annotated[tuple[str, ...], field("The end of its log.")]

    @property
    def ending(self) -> str:
        """How it ended in a few words: "signal 9", "exit code 1"; empty where neither is known."""
        if self.signal is not None:
            return f"signal {self.signal}"
        return "" if self.exit_code is None else f"exit code {self.exit_code}"


class RunResult(Document, frozen=True):
    """One repeat of a variant."""

    repeat: Annotated[int, field("Its number, from 0.")]
    status: Annotated[VariantStatus, field("How it ended.")]
    seed: Annotated[int | None, field("Its seed.")]
    path: Annotated[str, field("Its folder.")]
    median_ms: Annotated[float | None, field("Median step time.")]
    mean_ms: Annotated[float | None, field("Mean step time.")]
    p95_ms: Annotated[float | None, field("95th percentile of the step time.")]
    steps: Annotated[int | None, field("Steps that count.")]
    warmup_left_out: Annotated[int | None, field("Leading timed steps that count as warm-up.")]
    error: Annotated[ProcessError | None, field("How it failed.")]
    started_at: Annotated[str | None, field("When it started (ISO 8601).")] = None


class NvmlMeans(Document, frozen=True, kw_only=True):
    """What the GPU's management library (NVML) says of the timed steps: means over its samples."""

    utilisation_pct: Annotated[
        float | None, field("Share of its sampling periods in which any kernel ran; null if it does not say.")
    ] = None
    power_w: Annotated[float | None, field("Power of the GPU in watts; null if it does not say.")] = None


class RunRecord(File, frozen=True, kw_only=True):
    """One repeat of one variant (run.json). Step times stand in steps.parquet beside it."""

    schema_version: Annotated[int, field("Version of this document.", kind="first")] = 2
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
    nvml: Annotated[NvmlMeans | None, field("NVML's figures of the GPU during the timed steps; null without any.")]
    traces: Annotated[tuple[str, ...], field("The trace files, one a rank.")]
    config: Annotated[dict[str, Any], field("The composed configuration.")]
    warnings: Annotated[tuple[str, ...], field("The notes as sentences.")] = ()
    notes: Annotated[
        tuple[Note, ...], field("Figures that could not be measured, and conditions that may have changed the times.")
    ] = ()
    batch_bytes: Annotated[dict[str, int] | None, field("One batch's `inputs` and `targets` on the device.")] = None
    compiled: Annotated[
        Compilations | None,
        field("What torch.compile did on the first rank: its times are in no step time of a warmed-up program."),
    ] = None

    @property
    def workers(self) -> int | None:
        """Worker processes of the loader, by the configuration; None for a program that is not ours."""
        return self._setting("data", "num_workers")

    @property
    def explained_repeats(self) -> int | None:
        """The number of repeats that are profiled, by the configuration; None if all are."""
        return self._setting("profile", "repeats")

    @property
    def samples_per_step(self) -> int | None:
        """Samples in one step of all ranks, by the configuration; None if it does not say the batch size."""
        batch_size = self._setting("data", "batch_size")
        batches = self._setting("step", "accumulate") or 1
        return None if batch_size is None else batch_size * batches * self.world_size

    def _setting(self, section: str, name: str) -> int | None:
        """A number in a section of the configuration; None if it is not there."""
        value = (self.config.get(section) or {}).get(name)
        return None if value is None else int(value)


class Communication(File, frozen=True, kw_only=True):
    """What the ranks of a run have to tell each other, and how fast they can (communication.json)."""

    world_size: Annotated[
        int, column("Ranks", "Ranks; their step time is the slowest one's, step by step.", kind="first")
    ]
    backend: Annotated[str, column("Backend", "Backend of torch.distributed.", plain=True)]
    parameters: Annotated[int, column("Parameters", "Parameters with a gradient.", kind="first")]
    parameter_bytes: Annotated[int, column("Gradients", "Bytes of all gradients.", kind="first")]
    bucket_bytes: Annotated[
        tuple[int, ...] | None,
        field("Of PyTorch's buckets of gradients: as many all-reduces a step, without accumulation.", kind="first"),
    ]
    bus_bytes_per_s: Annotated[
        float,
        column(
            "Bus bandwidth",
            "Message size × 2(n−1)/n ÷ median time of the slowest rank, all-reduces alone, for all gradients' size: "
            "the rate at which each rank must send, whatever their number.",
            kind="rate",
        ),
    ]
    expected_ns: Annotated[
        int,
        column("Expected", "One all-reduce of all gradients: parameter bytes × 2(n−1)/n ÷ bus bandwidth.", kind="mean"),
    ]
    simplified_ns: Annotated[int, column("Simpler formula", "The same as parameters × 4 ÷ bandwidth.", kind="mean")]


class RunMemory(File, frozen=True, kw_only=True):
    """The memory of a run: its capacity, and what held it."""

    device: Annotated[str, field("`cpu` or `cuda`.")]
    batch_size: Annotated[int, field("Batch size.", kind="first")]
    capacity_bytes: Annotated[int, field("Memory of the device, or the limit that was set.", kind="first")]
    capacity_source: Annotated[str, field("`limit` (scale.memory_limit_mb), `device` or `machine`.")]
    held: Annotated[dict[str, int], field("Bytes of tensors between two steps, by category.", kind="sum")]
    gradient_bytes: Annotated[
        int | None, field("Gradients of the parameters at the end of a backward pass.", kind="mean")
    ] = None
    free_bytes: Annotated[
        int | None, field("Free in the caching allocator at the end of the forward pass; a CPU has none.", kind="mean")
    ] = None
    largest_free_bytes: Annotated[int | None, field("The largest free block then.", kind="mean")] = None

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
    steps lie between them and the first recorded one; `wait_ns` is the host's wait for data in each of `step_ns`, empty
    where no loader was seen.
    """

    median_ns: int
    step_ns: list[int]
    load_average: float
    cpus: int
    operators: tuple[int, ...] = ()
    until_recorded: int | None = None
    wait_ns: tuple[int, ...] = ()


class Capture(msgspec.Struct, frozen=True):
    """A trace's record.

    `unprofiled` is None where no steps were timed before it, `compiled` where nothing was compiled until its end.
    """

    unprofiled: Unprofiled | None
    compiled: Compilations | None = None


def capture_of(trace: Path) -> Capture | None:
    """The record beside a trace; None without one that can be read, as any file may have its name."""
    name = f"{trace.name.replace('trace', 'capture', 1).removesuffix(_END)}.json"
    try:
        content = read_bytes(trace.with_name(name)) if trace.name.endswith(_END) and "trace" in trace.name else b""
        return decode(content, Capture)
    except (OSError, ValueError):
        return None


class StepOfRun(Document, frozen=True):
    """One training step of a run, in the order they ran (steps.parquet)."""

    phase: Annotated[str, field("`warmup`, `timed` (unprofiled, the only source of step times) or `profiled`.")]
    step: Annotated[int, key("", "Index of the step within the run, from 0.")]
    step_ns: Annotated[int, field("Time of the step: CUDA events on a GPU, the monotonic clock on a CPU.")]
    loader_wait_ns: Annotated[
        int | None, field("Host time in the loader's `__next__` for this step; null without a DataLoader.")
    ]
    loss: Annotated[float | None, field("Loss of the step, read after the phase ended.")]


class SectionOfRun(Document, frozen=True):
    """One section of one step in a pass of its own, with a sync around each (sections.parquet)."""

    step: Annotated[int, key("", "Index of the step within the pass, from 0.")]
    section: Annotated[str, key("", "`copy data`, `forward`, `calc loss`, `backward` or `optimizer`.")]
    section_ns: Annotated[int, field("Host time from sync to sync.")]


class InputOfRun(Document, frozen=True):
    """The parts of loading one batch, in a pass of its own (input.parquet). The times are taken where the work is
    done: with workers, those of several batches overlap, and only the wait holds a step up."""

    batch: Annotated[int, key("", "Index of the batch within the pass, from 0.")]
    worker: Annotated[int | None, field("Worker process that loaded it; null for the main process.")]
    wait_ns: Annotated[int, field("Host time spent in the loader's `__next__` for it.")]
    fetch_ns: Annotated[int, field("Time in the data set, for all samples of the batch.")]
    collate_ns: Annotated[int, field("Time in the collate function.")]
    pin_ns: Annotated[int | None, field("Time to copy it to pinned memory; null if the loader does not pin.")]
    copy_ns: Annotated[int | None, field("Time to copy it to the device, from sync to sync; null on a CPU.")]


class OpLine(Document, frozen=True):
    """One operator of a watched training step, or a call that waits, with the source line that called it.

    The rows of op_lines.parquet.
    """

    step: Annotated[int, key("", "Number of the watched step, from 0.")]
    order: Annotated[int, key("", "Position of the operator within the step, from 0.")]
    op: Annotated[
        str,
        field("Name of the operator without its overload, or of the call that waits, as in a trace: `aten::index`."),
    ]
    label: Annotated[str | None, field("Innermost `record_function` label around the call.")]
    phase: Annotated[
        str | None,
        field("`backward` in autograd's engine; otherwise the outermost label if it names a part of the step."),
    ]
    file: Annotated[
        str | None,
        field("File of the first frame outside PyTorch and steptrace, of backward work the forward operator's."),
    ]
    line: Annotated[int | None, field("Line of the call in `file`, from 1.")]
    function: Annotated[str | None, field("Name of the function that the line stands in.")]
    program_file: Annotated[str | None, field("Of a line in a library: file of the program's line that leads there.")]
    program_line: Annotated[int | None, field("That line.")]
