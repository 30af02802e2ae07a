"""What one rank's process leaves for its readers, as plain dataclasses: a program has the standard library alone.

The readers' side, with the meaning of each field, is `steptrace.documents.probe`; a test holds both against each other.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

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
    """What a training held."""

    held: dict[str, int]
    gradient_bytes: int | None = None
    free_bytes: int | None = None
    largest_free_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """What one rank's process leaves: its steps and what it is, and by mode what was measured or followed."""

    rank: int
    world_size: int
    cwd: str
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
    nvml: dict[str, float] | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    trace: TraceEnd | None = None
    memory: HeldMemory | None = None
    #: `steptrace.predict.Prediction.to_json()`.
    prediction: dict[str, Any] | None = None
    outputs: tuple[dict[str, Any], ...] = ()


def plain_record(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """A rank's record as plain data, from what a process has collected by the names of `RankRecord`.

    Raises:
        TypeError: a name is none of these, or one without a default is missing.
    """
    memory = recorded.get("memory")
    # Nothing was counted where not even what is held was.
    held = HeldMemory(**memory) if memory and "held" in memory else None
    return asdict(RankRecord(**{**recorded, "memory": held}))
