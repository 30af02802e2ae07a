"""Whether each result of the workflow still stands: it is whole, and was made of what the plan would make it of now.

What counts lies beside the results. A run's status.json, or the record of another task, holds the key of what made it
(configuration, code, versions), a mark of each file, and the number of the attempt. The plan compares these with its
own. Snakemake's records in `.snakemake/` only help: they may be removed, or belong to other results.

Reading changes nothing on the disk. A task that has to run again gets a new number of attempt, which is one of its
rule's params.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from steptrace.documents.base import File, field, read, write
from steptrace.documents.run import FileMark, Status
from steptrace.errors import RecordError, SteptraceError
from steptrace.record import STATUS_FILE, damaged, finished, is_as_marked, mark, read_status
from steptrace.tasks import Task

_RECORDS: Final = Path("results", ".cache", "made")

#: Why a task runs again. `new`: it has no record.
Reason = Literal["new", "failed", "changed", "damaged"]


class Made(File, frozen=True, kw_only=True):
    """The record of a task that made its outputs."""

    key: Annotated[str, field("Digest of what it depends on, except the files that it reads.")]
    attempt: Annotated[int, field("Number of the attempt.")]
    inputs: Annotated[dict[str, FileMark], field("The files that it has read.")]
    outputs: Annotated[dict[str, FileMark], field("The files that it has made.")]


class State(msgspec.Struct, frozen=True):
    """What is known of a task.

    Attributes:
        attempt: as in `Task`.
        reason: why it runs again; None if it need not.
        file: the damaged file, if that is why.
    """

    attempt: int
    reason: Reason | None = None
    file: Path | None = None


def key_of(parts: Iterable[str]) -> str:
    """One digest of several texts."""
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:16]


def record_file(task: Task) -> Path:
    """Where a task's record is."""
    if task.supervised:
        return Path(task.name, STATUS_FILE)
    return Path(task.outputs[0]) if task.parts is not None else _RECORDS / f"{task.name}.json"


def state_of(task: Task) -> State:
    """What a task's record and files say."""
    file = record_file(task)
    record: Status | Made
    try:
        record = read_status(Path(task.name)) if task.supervised else read(file, Made)
    except RecordError:
        try:
            content = file.read_bytes()
        except OSError:
            return State(1, "new")
        # Not the number of any earlier attempt, which can no longer be known.
        return State(int(hashlib.sha256(content).hexdigest()[:8], 16), "damaged", file)
    again = record.attempt + 1
    if isinstance(record, Status):
        if record.status != "ok":
            return State(again, "failed")
        if record.key != task.key:
            return State(again, "changed")
        broken = damaged(Path(task.name), record, task.result)
        return State(again, "damaged", broken) if broken else State(record.attempt)
    if record.key != task.key:
        return State(again, "changed")
    if task.parts is not None:
        return _state_of_parts(task, record)
    if any(not is_as_marked(Path(name), expected) for name, expected in record.inputs.items()):
        return State(again, "changed")
    missing = {*task.outputs} - {
        *record.outputs,
        *(f"{parent}" for name in record.outputs for parent in Path(name).parents),
    }
    empty = next((Path(name) for name in sorted(missing) if not Path(name).is_dir()), None)
    broken = empty or next(
        (Path(n) for n, expected in record.outputs.items() if not is_as_marked(Path(n), expected)), None
    )
    return State(again, "damaged", broken) if broken else State(record.attempt)


def _state_of_parts(task: Task, record: Made) -> State:
    """Of a check of every variant: each of them has a status of its own."""
    again, study, what = record.attempt + 1, Path(task.name).parent, Path(task.name).name
    for variant, key in (task.parts or {}).items():
        folder = study / variant / what
        status = finished(folder)
        if status is None:
            return State(again, *_why_not(folder))
        if status.key != key:
            return State(again, "changed")
    return State(record.attempt)


def _why_not(folder: Path) -> tuple[Reason, Path | None]:
    """Why a folder's status is not one of those that are finished."""
    try:
        status = read_status(folder)
    except SteptraceError:
        return "damaged", folder / STATUS_FILE
    return ("damaged", damaged(folder, status)) if status.status == "ok" else ("failed", None)


def marks(paths: Iterable[str]) -> dict[str, FileMark]:
    """The mark of each file, and of each file in each folder."""
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            files += sorted(each for each in path.rglob("*") if each.is_file())
        elif path.is_file():  # a pipe has nothing to be marked
            files.append(path)
    return {str(file): mark(file) for file in files}


def write_record(task: Task) -> None:
    """Write the record of a task that has just made its outputs."""
    inputs, outputs = marks(task.inputs), {} if task.parts is not None else marks(task.outputs)
    write(record_file(task), Made(key=task.key, attempt=task.attempt, inputs=inputs, outputs=outputs))
