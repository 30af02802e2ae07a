"""What one run leaves behind: run.json, steps.parquet and status.json in `results/<study>/<variant>/run<k>/`.

`status.json` is written by the supervisor whatever happens; `run.json` and `steps.parquet` by a training that got to
its end. A run counts only if its status is `ok`.
"""

from dataclasses import dataclass, field
from typing import Any

#: How a run can end. `oom` is out of memory, `killed` a signal from outside (or the kernel).
STATUSES = ("ok", "failed", "oom", "killed")


@dataclass(frozen=True)
class Environment:
    """Where a run took place. Unmeasured is None."""

    host: str
    os: str
    cpu: str
    cpu_count: int
    memory_bytes: int
    gpu: str | None
    gpu_count: int
    gpu_memory_bytes: int | None
    driver: str | None
    cuda: str | None
    python: str
    torch: str
    steptrace: str
    git_commit: str | None
    git_dirty: bool | None


@dataclass(frozen=True)
class Status:
    """How a supervised process ended (status.json)."""

    status: str
    exit_code: int | None
    signal: int | None
    error: str | None
    log_tail: tuple[str, ...]
    started_at: str
    wall_s: float
    attempt: int


@dataclass(frozen=True)
class RunRecord:
    """One repeat of one variant (run.json). Step times stand in steps.parquet beside it."""

    study: str
    variant: str
    repeat: int
    seed: int
    world_size: int
    digest: str
    scale: str
    device: str
    clock: str
    environment: Environment
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    nvml: dict[str, float] | None
    traces: tuple[str, ...]
    config: dict[str, Any] = field(repr=False)
