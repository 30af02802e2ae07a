"""The record that one rank's process writes, as dataclasses, since the program may have the standard library only.

Readers use the structs of `steptrace.documents.probe`, which describe each field. A test compares both.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from steptrace.documents import compilations

State = Literal["partial", "complete", "failed"]


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """A step of one rank."""

    phase: str
    step_ns: int
    loss: float | None
    backwards: int
    batches: int
    samples: int | None
    wait_ns: int
    skipped: bool
    new_leader: bool


@dataclass(frozen=True, kw_only=True)
class GpuInUse:
    """The GPU that a rank used."""

    name: str
    memory_bytes: int
    count: int


@dataclass(frozen=True, kw_only=True)
class TraceEnd:
    """How the recording of a rank's trace ended."""

    state: str
    message: str
    file: str


@dataclass(frozen=True, kw_only=True)
class HeldMemory:
    """The memory that a training held."""

    held: dict[str, int]
    gradient_bytes: int | None = None
    free_bytes: int | None = None
    largest_free_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class OpLine:
    """An operator of a watched step, with the source line that called it."""

    step: int
    order: int
    op: str
    label: str | None
    phase: str | None
    file: str | None
    line: int | None
    function: str | None
    program_file: str | None
    program_line: int | None


@dataclass(frozen=True, kw_only=True)
class WarnedSyncs:
    """How often PyTorch warned of a sync."""

    by_step: tuple[int, ...]
    per_step: float


@dataclass(frozen=True, kw_only=True)
class SectionOfRun:
    """A section of a step, from sync to sync."""

    step: int
    section: str
    section_ns: int


@dataclass(frozen=True, kw_only=True)
class BatchTime:
    """How long each part of loading a batch took."""

    wait_ns: int
    fetch_ns: int
    collate_ns: int
    pin_ns: int | None
    copy_ns: int | None
    worker: int | None


@dataclass(frozen=True, kw_only=True)
class NvmlMeans:
    """The means of the figures of NVML over the timed steps; None for a figure that NVML does not report."""

    utilisation_pct: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, kw_only=True)
class GradientOutputs:
    """The gradients of one optimizer at the end of a step."""

    optimizer: str
    values: int
    formats: tuple[str, ...]
    norm: float
    depth: int
    terms: int
    projections: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class StepOutputs:
    """The loss and gradients of a step, to compare programs."""

    loss: float | None
    formats: tuple[str, ...]
    samples: int | None
    depth: int
    terms: int
    gradients: tuple[GradientOutputs, ...]


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """The record of one rank's process: its environment and steps, and what was measured or predicted in its mode."""

    schema_version: int = 1
    rank: int
    world_size: int
    cwd: str | None
    python: str
    torch: str
    cuda: str | None
    state: State = "complete"
    error: str | None = None
    steps_seen: int = 0
    optimizers: tuple[tuple[str, int], ...] = ()
    rows: tuple[MeasuredStep, ...] = ()
    operators: tuple[int, ...] = ()
    gpu: GpuInUse | None = None
    clock: str = "monotonic"
    #: Codes of `steptrace.documents.note` with their figures.
    notes: tuple[dict[str, Any], ...] = ()
    nvml: NvmlMeans | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    trace: TraceEnd | None = None
    memory: HeldMemory | None = None
    #: `steptrace.predict.Prediction.to_json()`.
    prediction: dict[str, Any] | None = None
    outputs: tuple[StepOutputs, ...] = ()
    op_lines: tuple[OpLine, ...] = ()
    sources: dict[str, str] | None = None
    warned_syncs: WarnedSyncs | None = None
    sections: tuple[SectionOfRun, ...] = ()
    input_batches: tuple[BatchTime, ...] = ()
    batch_bytes: dict[str, int] | None = None
    #: The fields of `steptrace.documents.run.Communication`.
    communication: dict[str, Any] | None = None
    compiled: compilations.Compilations | None = None


def plain_record(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """A rank's record as plain data, ready for JSON.

    Args:
        recorded: values by the names of `RankRecord`'s fields.

    Raises:
        TypeError: a name is not a field, or a field without a default is missing.
    """
    memory = recorded.get("memory")
    # Without `held`, nothing about memory was measured.
    held = HeldMemory(**memory) if memory and "held" in memory else None
    return asdict(RankRecord(**{**recorded, "memory": held}))
