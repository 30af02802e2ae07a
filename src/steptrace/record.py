"""What one run leaves behind: run.json, steps.parquet and status.json in `results/<study>/<variant>/run<k>/`; where the
study asks for it, sections.parquet too, and where several ranks trained, communication.json.

`status.json` is written by the supervisor whatever happens; `run.json` and `steps.parquet` by a training that got to
its end. A run counts only if its status is `ok`.

Every file is replaced in one step (written beside its place, then renamed), so that a killed process leaves the old
file or the new one, never half of one. Readers check what they read and raise `RecordError` naming the file.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from steptrace.errors import RecordError, SchemaError
from steptrace.files import missing_file, read_json, replace_atomically, write_json
from steptrace.schema import INPUT_OF_RUN, SECTIONS_OF_RUN, STEPS_OF_RUN, Table, validate

if TYPE_CHECKING:  # half a second to import, which whoever only writes a status need not pay
    import pandas as pd

STATUS_FILE: Final = "status.json"
RUN_FILE: Final = "run.json"
STEPS_FILE: Final = "steps.parquet"
SECTIONS_FILE: Final = "sections.parquet"
INPUT_FILE: Final = "input.parquet"
WARNED_SYNCS_FILE: Final = "warned_syncs.json"
COMMUNICATION_FILE: Final = "communication.json"

#: The phases of a run, in the order they are gone through. Step times come from `timed` alone.
PHASES: Final = ("warmup", "timed", "profiled")

_Record = TypeVar("_Record")

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
    #: What could not be measured although it was asked for, one sentence each.
    warnings: tuple[str, ...] = ()
    #: Bytes that a batch's `inputs` and `targets` take on the device; measured together with the sections.
    batch_bytes: dict[str, int] | None = None


@dataclass(frozen=True)
class Bandwidth:
    """An all-reduce of one message alone: its size, the median time on the slowest rank, and the bus bandwidth.

    Bus bandwidth is size / time x 2(n-1)/n for n ranks, as nccl-tests define it: the rate at which each rank must send
    whatever the number of ranks, so that it can be held against the link's.
    """

    bytes: int
    median_ns: int
    bus_bytes_per_s: float


@dataclass(frozen=True)
class Communication:
    """What the ranks of a run have to tell each other, and how fast they can (communication.json).

    `parameter_bytes` are those of the parameters with a gradient. `bucket_bytes` are PyTorch's buckets of gradients
    in the order they are reduced; None where it does not say. `bus_bytes_per_s` is the bandwidth of the message nearest
    to all gradients; from it come `expected_ns`, parameter_bytes x 2(n-1)/n / bandwidth, and `simplified_ns`,
    parameters x 4 / bandwidth, for one reduction of all gradients.
    """

    world_size: int
    backend: str
    parameters: int
    parameter_bytes: int
    bucket_bytes: tuple[int, ...] | None
    bandwidths: tuple[Bandwidth, ...]
    bus_bytes_per_s: float
    expected_ns: int
    simplified_ns: int


def write_communication(run_dir: Path, communication: Communication) -> Path:
    """Write `communication.json` into `run_dir` and return its path."""
    return write_json(run_dir / COMMUNICATION_FILE, msgspec.to_builtins(communication))


def read_communication(run_dir: Path) -> Communication | None:
    """The `communication.json` of `run_dir`, None where there is none; `RecordError` if it is malformed."""
    path = run_dir / COMMUNICATION_FILE
    return _convert(path, Communication) if path.exists() else None


def write_status(run_dir: Path, status: Status) -> Path:
    """Write `status.json` into `run_dir` (made if missing) and return its path."""
    _known_status(status, run_dir / STATUS_FILE)
    return write_json(run_dir / STATUS_FILE, msgspec.to_builtins(status))


def read_status(run_dir: Path) -> Status:
    """The `status.json` of `run_dir`; `RecordError` if it is missing, malformed or names an unknown status."""
    status = _convert(run_dir / STATUS_FILE, Status)
    _known_status(status, run_dir / STATUS_FILE)
    return status


def write_run(run_dir: Path, run: RunRecord) -> Path:
    """Write `run.json` into `run_dir` (made if missing) and return its path."""
    return write_json(run_dir / RUN_FILE, msgspec.to_builtins(run))


def read_run(run_dir: Path) -> RunRecord:
    """The `run.json` of `run_dir`; `RecordError` if it is missing or malformed."""
    return _convert(run_dir / RUN_FILE, RunRecord)


def write_steps(run_dir: Path, steps: "pd.DataFrame") -> Path:
    """Write `steps.parquet` (table `STEPS_OF_RUN`, one row a step) into `run_dir` and return its path."""
    path = run_dir / STEPS_FILE
    frame = _valid_steps(steps, path)
    replace_atomically(path, lambda temporary: frame.to_parquet(temporary, index=False))
    return path


def read_steps(run_dir: Path) -> "pd.DataFrame":
    """The `steps.parquet` of `run_dir` as a `STEPS_OF_RUN` table; `RecordError` if missing or malformed."""
    path = run_dir / STEPS_FILE
    return _valid_steps(_read_parquet(path, STEPS_OF_RUN), path)


def write_sections(run_dir: Path, sections: "pd.DataFrame") -> Path:
    """Write `sections.parquet` (table `SECTIONS_OF_RUN`) into `run_dir` and return its path."""
    path = run_dir / SECTIONS_FILE
    frame = _valid(sections, SECTIONS_OF_RUN, path)
    replace_atomically(path, lambda temporary: frame.to_parquet(temporary, index=False))
    return path


def read_sections(run_dir: Path) -> "pd.DataFrame":
    """The `sections.parquet` of `run_dir` as a `SECTIONS_OF_RUN` table; `RecordError` if missing or malformed."""
    path = run_dir / SECTIONS_FILE
    return _valid(_read_parquet(path, SECTIONS_OF_RUN), SECTIONS_OF_RUN, path)


def write_input(run_dir: Path, batches: "pd.DataFrame") -> Path:
    """Write `input.parquet` (table `INPUT_OF_RUN`, one row a batch) into `run_dir` and return its path."""
    path = run_dir / INPUT_FILE
    frame = _valid(batches, INPUT_OF_RUN, path)
    replace_atomically(path, lambda temporary: frame.to_parquet(temporary, index=False))
    return path


def read_input(run_dir: Path) -> "pd.DataFrame":
    """The `input.parquet` of `run_dir` as an `INPUT_OF_RUN` table; `RecordError` if missing or malformed."""
    path = run_dir / INPUT_FILE
    return _valid(_read_parquet(path, INPUT_OF_RUN), INPUT_OF_RUN, path)


def _convert(path: Path, kind: type[_Record]) -> _Record:
    try:
        return msgspec.convert(read_json(path), kind)
    except msgspec.ValidationError as error:
        raise RecordError(
            f"file does not hold a {kind.__name__} ({error})",
            where=path,
            next_step="remove the run's folder and run the study again",
        ) from error


def _known_status(status: Status, path: Path) -> None:
    if status.status not in STATUSES:
        raise RecordError(f"unknown status {status.status!r}", where=path, expected=" | ".join(STATUSES))


def _read_parquet(path: Path, table: Table) -> "pd.DataFrame":
    import pandas as pd

    try:
        return pd.read_parquet(path)
    except FileNotFoundError as error:
        raise missing_file(path) from error
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        raise RecordError("file is not a readable parquet table", where=path, expected=table.doc) from error


def _valid(frame: "pd.DataFrame", table: Table, path: Path) -> "pd.DataFrame":
    try:
        return validate(frame, table)
    except SchemaError as error:
        raise RecordError(f"table is malformed ({error.what})", where=path, expected=error.expected) from error


def _valid_steps(frame: "pd.DataFrame", path: Path) -> "pd.DataFrame":
    frame = _valid(frame, STEPS_OF_RUN, path)
    unknown = sorted(set(frame["phase"]) - set(PHASES))
    if unknown:
        raise RecordError(f"unknown phases {unknown}", where=path, expected=" | ".join(PHASES))
    if bool((frame[["step_ns", "loader_wait_ns"]] < 0).any(axis=None)):
        raise RecordError("a step has a negative time", where=path, expected="nanoseconds of at least 0")
    return frame
